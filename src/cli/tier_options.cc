#include "cli/tier_options.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "base/byte_size.h"
#include "cli/help.h"
#include "cli/model_options.h"
#include "kv/tier/store_url.h"

namespace quire::cli {

void add_tier_options(CLI::App& app, TierOptionsCli& o, bool server) {
  const char* const group = server ? "Options" : kRare;
  app.add_option("--kv-dir", o.dir, "folder for cached blocks, kept over restarts; or auto")
      ->group(group);
  app.add_flag("--no-kv-dir", o.none, "no such folder, whatever else is said")->group(kRare);
  app.add_option("--kv-disk", o.disk, "its bound, e.g. 100GiB (1GiB); or FOLDER:SIZE")
      ->group(group);
  app.add_option("--kv-disk-write", o.write,
                 "blocks it gets: auto, always, reused, evicted or never (auto)")
      ->check(CLI::IsMember({"auto", "always", "reused", "evicted", "never"}))
      ->group(kRare);
  app.add_option("--kv-resident", o.resident,
                 "memory of a request larger than the cache; the rest is in --kv-dir")
      ->group(group);
  app.add_option("--kv-store", o.store, "a store to share: redis[s]://HOST,..., s3://, file:///...")
      ->group(group);
  app.add_option("--kv-secret-file", o.secret_file,
                 "secret of all machines that share a store (openssl rand -hex 64)")
      ->group(kRare);
}

namespace {

constexpr std::uint64_t kSmallestFolder = 1 << 20;

// In the cache folder, with a bound that nobody notices: 4 GiB, and at most a tenth of what is free.
// Another process may be using it: then there is none.
void use_common_folder(RuntimeOptions& to) {
  namespace fs = std::filesystem;
  constexpr std::uint64_t kMost = std::uint64_t{4} << 30;
  to.kv_dir_needed = false;
  const fs::path parent = fs::path(model_cache_folder()).parent_path(), folder = parent / "kv";
  std::error_code error, ignored;
  fs::create_directories(parent, ignored);
  const fs::space_info space = fs::space(parent, error);
  std::uint64_t used = 0;
  for (const auto& file : fs::recursive_directory_iterator(folder, ignored))
    if (file.is_regular_file(ignored)) used += file.file_size(ignored);
  to.kv_dir = folder.string();
  to.kv_disk_bytes =
      std::clamp<std::uint64_t>((error ? 0 : space.available + used) / 10, kSmallestFolder, kMost);
}

}  // namespace

Status read_tier_options(const TierOptionsCli& o, RuntimeOptions& to) {
  to.log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  TRY(to.kv_disk_write, find_tier_write(o.write));
  if (!o.store.empty()) TRY_STATUS(check_store_url(o.store));
  if (!o.resident.empty()) {
    TRY(to.kv_resident_bytes, parse_size(o.resident));
    if (to.kv_resident_bytes == 0)
      return Error{Code::invalid, "--kv-resident 0 leaves nothing to compute with; leave it out"};
  }
  to.kv_store = o.store;
  to.kv_secret_file = o.secret_file;
  if (o.none) return {};
  if (o.dir == "auto" && to.device != DeviceKind::cpu) return {};
  if (o.dir == "auto")
    use_common_folder(to);
  else
    to.kv_dir = o.dir;
  std::string size = o.disk;
  if (const std::size_t colon = size.rfind(':'); colon != std::string::npos) {
    if (!o.dir.empty())
      return Error{Code::invalid, "--kv-disk " + o.disk + " and --kv-dir name two folders"};
    to.kv_dir = size.substr(0, colon);
    size = size.substr(colon + 1);
  }
  if (!size.empty() && to.kv_dir.empty())
    return Error{Code::invalid, "--kv-disk bounds a folder; name it with --kv-dir"};
  if (!size.empty()) {
    TRY(to.kv_disk_bytes, parse_size(size));
    if (to.kv_disk_bytes < kSmallestFolder)
      return Error{Code::invalid, "--kv-disk " + size + " is too small; give 1MiB or more"};
  }
  return {};
}

}  // namespace quire::cli
