#include "cli/tier_options.h"

#include <fmt/core.h>

#include "cli/help.h"
#include "cli/model_options.h"

namespace quire::cli {

void add_tier_options(CLI::App& app, TierOptionsCli& o) {
  app.add_option("--kv-dir", o.dir, "folder where cached blocks outlive the process");
  app.add_option("--kv-disk", o.disk, "its bound, e.g. 100GiB (1GiB); or FOLDER:SIZE");
  app.add_option("--kv-disk-write", o.write,
                 "blocks it gets: auto, always, reused, evicted or never (auto)")
      ->check(CLI::IsMember({"auto", "always", "reused", "evicted", "never"}))
      ->group(kRare);
}

Status read_tier_options(const TierOptionsCli& o, RuntimeOptions& to) {
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
  constexpr std::uint64_t kSmallest = 1 << 20;
  if (!size.empty()) {
    TRY(to.kv_disk_bytes, parse_size(size));
    if (to.kv_disk_bytes < kSmallest)
      return Error{Code::invalid, "--kv-disk " + size + " is too small; give 1MiB or more"};
  }
  TRY(to.kv_disk_write, find_tier_write(o.write));
  to.log = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  return {};
}

}  // namespace quire::cli
