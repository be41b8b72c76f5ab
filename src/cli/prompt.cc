#include "cli/prompt.h"

#include <editline/readline.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <utility>

namespace quire::cli {
namespace {

constexpr int kClearLine = 'U' & 0x1f;  // the editor's key for it
volatile std::sig_atomic_t interrupt = 0;
bool several_lines = false;  // the message has lines already: Ctrl-C drops them, too
bool dropped = false, line_ends = false;
int wake[2] = {-1, -1};  // a pipe: whichever thread gets the signal, and whenever, the reader wakes

void on_interrupt(int) {
  const int error = errno;
  interrupt = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake[1], "", 1);
  errno = error;
}

void forget_interrupts() {
  char bytes[64];
  while (::read(wake[0], bytes, sizeof bytes) > 0) continue;
  interrupt = 0;
}

// The editor asks for a key. Its own handling of signals sends Ctrl-C on to the whole process
// group and takes the second one for the end of input, so it is switched off and Ctrl-C comes in
// here.
int next_key(FILE*) {
  std::mbstate_t character{};
  if (std::exchange(line_ends, false)) return '\n';
  for (;;) {
    pollfd from[2] = {{STDIN_FILENO, POLLIN, 0}, {wake[0], POLLIN, 0}};
    if (::poll(from, 2, -1) < 0) continue;  // a signal
    if (from[1].revents != 0) {
      forget_interrupts();
      dropped = line_ends = several_lines;
      return kClearLine;
    }
    char byte = 0;
    const ssize_t got = ::read(STDIN_FILENO, &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return EOF;
    wchar_t wide = 0;
    const std::size_t used = std::mbrtowc(&wide, &byte, 1, &character);
    if (used == static_cast<std::size_t>(-2)) continue;  // more of it to come
    return used == static_cast<std::size_t>(-1) ? '?' : static_cast<int>(wide);
  }
}

}  // namespace

Prompt::Prompt(std::string history_file) : history_file_(std::move(history_file)) {
  std::setlocale(LC_CTYPE, "");  // the editor counts columns of characters
  if (wake[0] < 0 && ::pipe2(wake, O_NONBLOCK | O_CLOEXEC) != 0) wake[0] = wake[1] = -1;
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  rl_catch_signals = 0;
  rl_getc_function = next_key;
  ::using_history();
  ::read_history(history_file_.c_str());
}

bool Prompt::read(std::string& message) {
  message.clear();
  bool quoted = false;
  for (const char* prompt = "\n> ";; prompt = ". ") {
    forget_interrupts();
    ::rl_resize_terminal();
    several_lines = prompt[0] == '.';
    char* line = ::readline(prompt);
    if (line == nullptr) {
      if (message.empty()) return false;
      break;
    }
    std::string text = line;
    std::free(line);
    if (std::exchange(dropped, false)) {
      message.clear();
      return true;  // nothing to answer
    }
    if (text == "\"\"\"") {
      if (quoted) break;
      quoted = true;
      continue;
    }
    const bool more = !quoted && text.ends_with('\\');
    if (more) text.pop_back();
    message += (message.empty() ? "" : "\n") + text;
    if (!quoted && !more) break;
  }
  if (!message.empty()) {
    ::add_history(message.c_str());
    ::write_history(history_file_.c_str());
  }
  forget_interrupts();
  return true;
}

bool Prompt::interrupted() const { return interrupt != 0; }

}  // namespace quire::cli
