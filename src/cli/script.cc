#include "cli/script.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

extern char** environ;

namespace quire::cli {
namespace {

namespace fs = std::filesystem;

// Beside the program: as built (build/release/quire), or as installed (bin/quire).
Result<std::string> find_script(const std::string& name) {
  std::error_code none;
  const fs::path folder = fs::read_symlink("/proc/self/exe", none).parent_path();
  for (const char* where : {"../../scripts", "../share/quire", "../../../scripts"}) {
    const fs::path script = folder / where / name;
    if (fs::exists(script, none)) return fs::canonical(script, none).string();
  }
  return Error{Code::not_found, "the script " + name + " is not beside this program"};
}

}  // namespace

Result<std::string> run_script(const std::string& name, const std::vector<std::string>& arguments) {
  TRY(std::string script, find_script(name));
  std::vector<std::string> words{script};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);

  int out[2];
  if (::pipe2(out, O_CLOEXEC) != 0) return Error{Code::unavailable, script + ": no pipe is left"};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, script.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got; error == 0 && (got = ::read(out[0], buffer, sizeof buffer)) != 0;) {
    if (got < 0 && errno != EINTR) break;
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(out[0]);
  int status = error;
  while (error == 0 && ::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  if (status != 0) return Error{Code::unavailable, script + " failed; its own lines say why"};
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

}  // namespace quire::cli
