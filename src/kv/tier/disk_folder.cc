#include "kv/tier/disk_folder.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "base/hash.h"
#include "base/json.h"
#include "kv/tier/disk_volume.h"
#include "kv/tier/record.h"

namespace quire {
namespace {

constexpr std::uint32_t kFolderVersion = 1;
constexpr std::string_view kFolderFormat = "quire-kv-folder";
constexpr std::array<std::string_view, 9> kFolderNames = {"manifest.json", "secret",   "lock",
                                                          "index.qidx",    "sessions", "segments",
                                                          "weights",       "probe",    "responses"};

// The text of a manifest, with a checksum of everything else in it.
std::string manifest_text(Json manifest) {
  manifest.erase("check");
  const std::string plain = manifest.dump();
  manifest["check"] = fmt::format("{:016x}", hash64(plain.data(), plain.size()));
  return manifest.dump(2) + '\n';
}

}  // namespace

DiskFolder::DiskFolder(Files& files, const DiskFolderOptions& options)
    : files_(&files),
      path_(options.path),
      read_only_(options.read_only),
      given_(options.secret),
      secret_(DeploymentSecret::random()) {
  while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
}

DiskFolder::DiskFolder(DiskFolder&& o) noexcept
    : files_(o.files_),
      path_(std::move(o.path_)),
      read_only_(o.read_only_),
      damaged_(o.damaged_),
      created_(std::move(o.created_)),
      fingerprint_(std::move(o.fingerprint_)),
      lock_(std::exchange(o.lock_, std::nullopt)),
      given_(std::move(o.given_)),
      secret_(o.secret_),
      problems_(std::move(o.problems_)) {}

DiskFolder::~DiskFolder() {
  if (lock_) files_->close(*lock_);
}

std::string DiskFolder::volume_path(std::uint32_t number) const {
  return volumes_path() + '/' + volume_file_name(number);
}

Result<DiskFolder> DiskFolder::open(Files& files, const DiskFolderOptions& options) {
  if (options.path.empty()) return Error{Code::invalid, "the name of the cache folder is empty"};
  DiskFolder folder(files, options);
  if (options.create && !options.read_only) TRY_STATUS(files.make_folder(folder.path_));
  TRY_STATUS(folder.check_content());
  if (!options.read_only) {
    auto lock = files.lock(folder.path_ + "/lock");
    if (!lock.ok() && lock.error().code == Code::exhausted)
      return Error{Code::invalid, folder.path_ +
                                      ": another process is using this cache folder; "
                                      "stop it, or use another folder"};
    if (!lock.ok()) return lock.error();
    folder.lock_ = lock.value();
  }
  TRY_STATUS(folder.read_manifest());
  TRY_STATUS(folder.read_secret());
  if (options.read_only) return folder;
  TRY(const auto entries, files.list(folder.path_));
  for (const FileEntry& e : entries)  // what a killed process left
    if (e.name.ends_with(".tmp") || e.name == "probe")
      TRY_STATUS(files.remove(folder.path_ + '/' + e.name));
  for (const char* inside : {"/segments", "/sessions"})
    TRY_STATUS(files.make_folder(folder.path_ + inside));
  const std::string stated = folder.secret_.fingerprint();
  if (folder.damaged_ || folder.fingerprint_ != stated) {
    if (folder.created_.empty())
      folder.created_ = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    TRY_STATUS(files.write_whole(folder.path_ + "/manifest.json",
                                 manifest_text({{"format", kFolderFormat},
                                                {"version", kFolderVersion},
                                                {"records", kRecordVersion},
                                                {"created", folder.created_},
                                                {"secret", stated}}),
                                 true));
  }
  return folder;
}

// A folder without a manifest may hold nothing but what an interrupted start leaves.
Status DiskFolder::check_content() const {
  TRY(const auto entries, files_->list(path_));
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(entries, [&](const FileEntry& e) { return e.name == name; });
  };
  if (has("manifest.json")) return {};
  if (read_only_ && !has("segments"))
    return Error{Code::not_found, path_ + ": is not a cache folder: it has no manifest.json"};
  for (const FileEntry& e : entries) {
    std::string_view name = e.name;
    if (name.ends_with(".tmp")) name.remove_suffix(4);
    if (std::ranges::find(kFolderNames, name) == kFolderNames.end())
      return Error{Code::invalid, path_ + ": holds other things ('" + e.name +
                                      "'); name an empty folder, or one that does not exist"};
  }
  return {};
}

Status DiskFolder::read_manifest() {
  const auto text = files_->read_whole(path_ + "/manifest.json");
  damaged_ = true;
  if (!text.ok() && text.error().code == Code::not_found) return {};
  if (!text.ok()) return text.error();
  const auto parsed = parse_json(text.value());
  const auto field = [&](const char* name) {
    const Json& json = parsed.value();
    return json.contains(name) && json[name].is_string() ? json[name].get<std::string>()
                                                         : std::string();
  };
  const bool whole = parsed.ok() && parsed.value().is_object() &&
                     manifest_text(parsed.value()) == text.value() &&
                     field("format") == kFolderFormat && parsed.value().contains("version") &&
                     parsed.value()["version"].is_number_unsigned();
  if (!whole) {
    problems_.push_back("manifest.json: is damaged; a new one is written");
    return {};
  }
  if (const auto version = parsed.value()["version"].get<std::uint64_t>(); version > kFolderVersion)
    return Error{Code::unsupported,
                 fmt::format("{}: the cache folder has version {}, this program knows {}; use "
                             "another folder, or delete this one",
                             path_, version, kFolderVersion)};
  created_ = field("created");
  fingerprint_ = field("secret");
  damaged_ = false;
  return {};
}

Status DiskFolder::read_secret() {
  if (given_) {
    secret_ = *given_;
  } else {
    const std::string path = path_ + "/secret";
    const auto text = files_->read_whole(path);
    if (!text.ok() && text.error().code != Code::not_found) return text.error();
    const auto parsed = text.ok() ? DeploymentSecret::parse(text.value(), path)
                                  : Result<DeploymentSecret>(text.error());
    if (parsed.ok()) {
      secret_ = parsed.value();
    } else {
      if (text.ok() || !fingerprint_.empty())
        problems_.push_back(
            "secret: is missing or damaged; a new one is made, and what is stored "
            "cannot be used any more");
      if (!read_only_) TRY_STATUS(files_->write_whole(path, secret_.text(), true));
      return {};
    }
  }
  if (!fingerprint_.empty() && fingerprint_ != secret_.fingerprint())
    problems_.push_back(
        "secret: is not the one this folder was used with; what is stored cannot "
        "be used any more");
  return {};
}

Status DiskFolder::probe() const {
  const std::string path = path_ + "/probe";
  const std::string written(4096, 'p');
  TRY_STATUS(files_->write_whole(path, written, false));
  TRY(const std::string text, files_->read_whole(path));
  TRY_STATUS(files_->remove(path));
  if (text != written) return Error{Code::unavailable, path_ + ": does not give back what it took"};
  return {};
}

}  // namespace quire
