#include "engine/session_store.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "engine/session_disk.h"
#include "kv/layout.h"

namespace quire {
namespace {

constexpr std::string_view kEnding = ".kvc";
constexpr std::time_t kForgottenSeconds = 600;

std::string tokenizer_digest(const Tokenizer& tokenizer) {
  std::string all;
  for (TokenId id = 0; id < tokenizer.size(); ++id) {
    all += tokenizer.piece(id);
    all += tokenizer.is_special(id) ? '\1' : '\0';
  }
  return BlockKey{sha256(all)}.hex();
}

}  // namespace

std::string random_name() {
  const RecordSalt random = Seal::random_salt();
  std::string name;
  for (std::size_t i = 0; i < 16; ++i) name += fmt::format("{:02x}", random[i]);
  return name;
}

SessionStore::Nameless::~Nameless() { ::unlink(path.c_str()); }

Status check_save_name(std::string_view name) {
  const bool plain = std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
  if (name.empty() || name.size() > kSessionNameMax || name.front() == '.' || !plain)
    return Error{Code::invalid,
                 fmt::format("a saved session's name has 1 to {} letters, digits, '.', '_' and "
                             "'-', and does not begin with a dot",
                             kSessionNameMax)};
  return {};
}

Result<std::string> SessionStore::folder(const std::string& tenant) const {
  if (!runtime_.sessions())
    return Error{Code::unavailable,
                 "sessions are saved in the cache folder; start with --kv-dir FOLDER"};
  const std::string& top = runtime_.sessions()->path;
  const std::string path =
      top + '/' + BlockKey{sha256("tenant of sessions " + tenant)}.hex().substr(0, 32);
  for (const std::string& made : {top, path})
    if (::mkdir(made.c_str(), 0700) != 0 && errno != EEXIST) return disk_error("make", made);
  return path;
}

std::uint64_t SessionStore::stored_bytes() const {
  namespace fs = std::filesystem;
  std::uint64_t bytes = 0;
  std::error_code error, ignored;
  for (auto it = fs::recursive_directory_iterator(runtime_.sessions()->path, error);
       !error && it != fs::recursive_directory_iterator(); it.increment(error))
    if (it->is_regular_file(ignored)) bytes += it->file_size(ignored);
  return bytes;
}

SessionModel SessionStore::model_of(const KvPolicy& kv) const {
  const RootIdentity identity = runtime_.identity(kv.tenant, kv.storage.get(), kv.root_adapter());
  const StoragePolicy& storage = kv.storage ? *kv.storage : runtime_.storage();
  const ModelConfig& config = runtime_.config();
  return {.name = config.name,
          .weights = BlockKey{identity.weights}.hex(),
          .tokenizer = tokenizer_digest(runtime_.tokenizer()),
          .adapter = identity.adapter,
          .layout = BlockKey{layout_digest(runtime_.geometry(kv.storage.get()))}.hex(),
          .positions = identity.position_scheme,
          .numerics = identity.numerics,
          .format = storage.name(),
          .tokens_per_block = identity.tokens_per_block,
          .layers = config.layers,
          .kv_heads = config.kv_heads,
          .head_dim = config.head_dim};
}

Result<SavedSession> SessionStore::save(const Session& session, const std::string& name,
                                        const SaveOptions& options) {
  TRY_STATUS(check_save_name(name));
  TRY(const std::string in, folder(session.tenant));
  TRY(const std::vector<SavedSession> there, list(session.tenant));
  const auto old = std::ranges::find(there, name, &SavedSession::name);
  if (there.size() >= kSavesMax && old == there.end())
    return Error{Code::exhausted,
                 fmt::format("there are {} saved sessions; delete some", there.size())};
  const std::uint64_t stored = stored_bytes(), bound = runtime_.sessions()->bytes_max;
  const std::string path = in + '/' + name + std::string(kEnding),
                    temporary = fmt::format("{}/.{}.tmp", in, random_name());
  const Nameless scratch(temporary);
  TRY(SavedSession saved, write(session, temporary, options, bound - std::min(bound, stored)));
  if (::rename(temporary.c_str(), path.c_str()) != 0) return disk_error("rename", temporary);
  TRY_STATUS(sync_folder(in));
  saved.name = name;
  return saved;
}

Result<std::shared_ptr<const SessionStore::Nameless>> SessionStore::save_nameless(
    const Session& session) {
  TRY(const std::string in, folder(session.tenant));
  const std::uint64_t stored = stored_bytes(), bound = runtime_.sessions()->bytes_max;
  auto scratch = std::make_shared<const Nameless>(fmt::format("{}/.{}.tmp", in, random_name()));
  TRY_STATUS(write(session, scratch->path, {}, bound - std::min(bound, stored)));
  return scratch;
}

Result<std::vector<SavedSession>> SessionStore::list(const std::string& tenant) const {
  TRY(const std::string in, folder(tenant));
  std::vector<SavedSession> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(in.c_str()), &::closedir);
  if (!dir) return disk_error("list", in);
  while (const dirent* const entry = ::readdir(dir.get())) {
    const std::string_view name = entry->d_name;
    const std::string path = in + '/' + entry->d_name;
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) continue;
    // What a process that was killed left behind.
    if (name.ends_with(".tmp") && std::time(nullptr) - info.st_mtim.tv_sec > kForgottenSeconds)
      ::unlink(path.c_str());
    if (!name.ends_with(kEnding) || name.starts_with('.')) continue;
    all.push_back({.name = std::string(name.substr(0, name.size() - kEnding.size())),
                   .bytes = static_cast<std::uint64_t>(info.st_size),
                   .changed = info.st_mtim.tv_sec * 1'000'000'000 + info.st_mtim.tv_nsec});
  }
  std::ranges::sort(all, {}, &SavedSession::name);
  return all;
}

Result<SavedSession> SessionStore::remove(const std::string& tenant, const std::string& name,
                                          bool dry_run) {
  TRY_STATUS(check_save_name(name));
  TRY(const std::vector<SavedSession> there, list(tenant));
  const auto found = std::ranges::find(there, name, &SavedSession::name);
  if (found == there.end())
    return Error{Code::not_found, fmt::format("there is no saved session '{}'", name)};
  TRY(const std::string in, folder(tenant));
  const std::string path = in + '/' + name + std::string(kEnding);
  if (!dry_run && ::unlink(path.c_str()) != 0) return disk_error("remove", path);
  return *found;
}

Result<LoadedSession> SessionStore::load(const std::string& tenant, const std::string& name,
                                         const std::string& id, const ParsePolicy& parse) {
  TRY_STATUS(check_save_name(name));
  TRY(const std::string in, folder(tenant));
  const std::string path = in + '/' + name + std::string(kEnding);
  const OpenFile file(path, O_RDONLY);
  struct stat info {};
  if (file.fd < 0 && errno == ENOENT)
    return Error{Code::not_found, fmt::format("there is no saved session '{}'", name)};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) return disk_error("open", path);
  return read(tenant, SessionSource(file, static_cast<std::uint64_t>(info.st_size)), id, parse);
}

Result<LoadedSession> SessionStore::load_bytes(const std::string& tenant, std::string_view bytes,
                                               const std::string& id, const ParsePolicy& parse) {
  TRY_STATUS(folder(tenant));
  return read(tenant, SessionSource(bytes), id, parse);
}

}  // namespace quire
