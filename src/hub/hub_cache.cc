#include "hub/hub_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "hub/choose_files.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string hub_home() {
  if (const std::string home = variable("HF_HOME"); !home.empty()) return home;
  const std::string cache = variable("XDG_CACHE_HOME");
  const std::string user = variable("HOME");
  return (cache.empty() ? (user.empty() ? "." : user) + "/.cache" : cache) + "/huggingface";
}

std::string trimmed(std::string text) {
  while (!text.empty() && std::strchr(" \t\r\n", text.back())) text.pop_back();
  while (!text.empty() && std::strchr(" \t\r\n", text.front())) text.erase(0, 1);
  return text;
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

// The commit that a revision means here; empty: not known.
std::string known_commit(const fs::path& repo, const std::string& revision) {
  if (is_commit(revision)) return revision;
  const auto text = read_file((repo / "refs" / revision).string());
  if (!text.ok()) return {};
  const std::string commit = trimmed(text.value());
  return is_commit(commit) ? commit : "";
}

// Everything below a folder, a few folders deep. Links to folders are not followed.
void walk_below(const fs::path& folder, auto visit) {
  std::error_code none;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, none);
  for (const fs::recursive_directory_iterator end; !none && at != end; at.increment(none)) {
    if (at.depth() > 6) at.disable_recursion_pending();
    visit(*at);
  }
}

// Paths below a snapshot whose bytes are there.
std::vector<std::string> snapshot_files(const fs::path& snapshot) {
  std::vector<std::string> paths;
  walk_below(snapshot, [&](const fs::directory_entry& e) {
    std::error_code bad;
    if (e.is_regular_file(bad)) paths.push_back(e.path().lexically_relative(snapshot).string());
  });
  std::ranges::sort(paths);
  return paths;
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code none;
  fs::directory_iterator at(folder, none);
  for (const fs::directory_iterator end; !none && at != end; at.increment(none))
    entries.push_back(at->path());
  return entries;
}

std::uint64_t bytes_at(const fs::path& path) {
  std::error_code none;
  const std::uintmax_t bytes = fs::file_size(path, none);
  return none ? 0 : bytes;
}

Error remove_failed(const fs::path& path, const std::error_code& error) {
  return {Code::unavailable,
          fmt::format("{}: cannot be removed: {}", path.string(), error.message())};
}

// Blobs that a link of any snapshot leads to.
std::set<std::string> linked_blobs(const fs::path& repo) {
  std::set<std::string> linked;
  walk_below(repo / "snapshots", [&](const fs::directory_entry& e) {
    std::error_code bad;
    if (e.is_symlink(bad)) linked.insert(fs::read_symlink(e.path(), bad).filename().string());
  });
  return linked;
}

}  // namespace

HubCache::HubCache() {
  folder_ = variable("HF_HUB_CACHE");
  if (folder_.empty()) folder_ = variable("HUGGINGFACE_HUB_CACHE");
  if (folder_.empty()) folder_ = hub_home() + "/hub";
}

std::string HubCache::repo_folder(const HubName& name) const {
  return folder_ + "/models--" + name.owner + "--" + name.repo;
}

Result<std::string> HubCache::find(const HubName& name) const {
  const fs::path repo = repo_folder(name);
  const std::string commit = known_commit(repo, name.revision);
  const auto missing = [&](const std::string& why) {
    return Error{Code::not_found, fmt::format("{} is not in {}{}; `quire pull {}` fetches it",
                                              name.text(), folder_, why, name.text())};
  };
  if (commit.empty()) return missing("");
  const fs::path snapshot = repo / "snapshots" / commit;
  const std::vector<std::string> paths = snapshot_files(snapshot);
  const auto chosen = choose_files(paths, name.file, name.full());
  if (!chosen.ok()) return missing(" as a whole");
  return (chosen.value().main.empty() ? snapshot : snapshot / chosen.value().main).string();
}

std::vector<CachedModel> HubCache::models() const {
  std::vector<CachedModel> found;
  for (const fs::path& repo : entries_of(folder_)) {
    const std::string folder = repo.filename().string();
    if (!folder.starts_with("models--")) continue;
    const std::size_t middle = folder.find("--", 8);
    if (middle == folder.npos) continue;
    const auto name =
        HubName::parse(folder.substr(8, middle - 8) + "/" + folder.substr(middle + 2));
    if (!name.ok()) continue;
    const std::string commit = known_commit(repo, name.value().revision);
    if (commit.empty()) continue;
    const fs::path snapshot = repo / "snapshots" / commit;
    std::vector<std::string> left = snapshot_files(snapshot);
    std::vector<CachedModel> here;
    while (true) {  // one GGUF model after the other; a folder of safetensors is one
      const auto chosen = choose_files(left, "", name.value().full());
      if (!chosen.ok()) break;
      CachedModel model{.name = name.value(), .path = {}};
      const std::string& main = chosen.value().main;
      model.path = (main.empty() ? snapshot : snapshot / main).string();
      std::set<std::size_t> taken(chosen.value().files.begin(), chosen.value().files.end());
      for (const std::size_t i : taken) model.bytes += bytes_at(snapshot / left[i]);
      struct stat info {};
      if (::stat(model.path.c_str(), &info) == 0) model.changed_s = info.st_mtime;
      model.name.file = main;
      here.push_back(std::move(model));
      if (main.empty()) break;
      std::vector<std::string> rest;
      for (std::size_t i = 0; i < left.size(); ++i)
        if (!taken.contains(i) && left[i].ends_with(".gguf")) rest.push_back(left[i]);
      left = std::move(rest);
    }
    if (here.size() == 1) here.front().name.file.clear();
    found.insert(found.end(), here.begin(), here.end());
  }
  std::ranges::sort(found, {}, [](const CachedModel& m) { return m.name.text(); });
  return found;
}

Result<std::uint64_t> HubCache::remove(const HubName& name) {
  const fs::path repo = repo_folder(name);
  std::error_code error;
  if (!fs::is_directory(repo, error) || fs::is_symlink(repo, error))
    return Error{Code::not_found, fmt::format("{} is not in {}; `quire ls` lists what is there",
                                              name.text(), folder_)};
  std::uint64_t freed = 0;
  if (!name.file.empty()) {
    const fs::path snapshot = repo / "snapshots" / known_commit(repo, name.revision);
    const std::vector<std::string> paths = snapshot_files(snapshot);
    TRY(const ChosenFiles chosen, choose_files(paths, name.file, name.full()));
    for (const std::size_t i : chosen.files)
      if (!fs::remove(snapshot / paths[i], error)) return remove_failed(snapshot / paths[i], error);
    const std::set<std::string> linked = linked_blobs(repo);
    for (const fs::path& blob : entries_of(repo / "blobs")) {
      if (linked.contains(blob.filename().string()) || !fs::is_regular_file(blob, error)) continue;
      freed += bytes_at(blob);
      if (!fs::remove(blob, error)) return remove_failed(blob, error);
    }
    return freed;
  }
  walk_below(repo, [&](const fs::directory_entry& e) {
    std::error_code bad;
    if (!e.is_symlink(bad) && e.is_regular_file(bad)) freed += bytes_at(e.path());
  });
  fs::remove_all(repo, error);
  if (error) return remove_failed(repo, error);
  return freed;
}

std::string HubCache::blob(const HubName& name, const std::string& digest) const {
  return repo_folder(name) + "/blobs/" + digest;
}

Status HubCache::link(const HubName& name, const std::string& commit, const std::string& path,
                      const std::string& digest) const {
  const fs::path at = fs::path(repo_folder(name)) / "snapshots" / commit / path;
  std::string target = "../../blobs/" + digest;
  for (const char c : path)
    if (c == '/') target.insert(0, "../");
  std::error_code error;
  fs::create_directories(at.parent_path(), error);
  const auto there = [&] {
    std::error_code none;
    return fs::is_symlink(at, none) && fs::read_symlink(at, none) == target;
  };
  if (there()) return {};
  fs::remove(at, error);
  fs::create_symlink(target, at, error);
  if (error && !there())  // another process may have made it meanwhile
    return Error{Code::unavailable,
                 fmt::format("{}: cannot be linked: {}", at.string(), error.message())};
  return {};
}

Status HubCache::set_revision(const HubName& name, const std::string& commit) const {
  if (is_commit(name.revision)) return {};
  const fs::path ref = fs::path(repo_folder(name)) / "refs" / name.revision;
  std::error_code error;
  fs::create_directories(ref.parent_path(), error);
  return write_file(ref.string(), commit);
}

std::string repo_of_snapshot(const std::string& path) {
  fs::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  if (!is_commit(p.filename().string()) || p.parent_path().filename() != "snapshots") return {};
  const std::string folder = p.parent_path().parent_path().filename().string();
  if (!folder.starts_with("models--")) return {};
  return folder.substr(folder.rfind("--") + 2);
}

Result<HubAccess> HubAccess::from_environment() {
  HubAccess access;
  if (const std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty())
    access.endpoint = endpoint;
  while (access.endpoint.ends_with('/')) access.endpoint.pop_back();
  const std::string offline = variable("HF_HUB_OFFLINE");
  access.offline = !offline.empty() && offline != "0";
  access.token = variable("HF_TOKEN");
  if (access.token.empty()) {
    std::string file = variable("HF_TOKEN_PATH");
    if (file.empty()) file = hub_home() + "/token";
    if (auto text = read_file(file); text.ok()) access.token = std::move(text.value());
  }
  access.token = trimmed(access.token);
  for (const char c : access.token)
    if (c <= 0x20 || c >= 0x7f)
      return Error{
          Code::invalid,
          "HF_TOKEN (or the file that HF_TOKEN_PATH names) holds what cannot be in a token"};
  return access;
}

}  // namespace quire
