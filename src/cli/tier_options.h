// cli/tier_options.h - where cached blocks are kept besides memory: --kv-dir and its bounds, --kv-store.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "engine/runtime.h"

namespace quire::cli {

struct TierOptionsCli {
  std::string dir, disk, write = "auto", store, secret_file, resident;
  bool none = false;
};
// Other commands than a server rarely need them.
void add_tier_options(CLI::App& app, TierOptionsCli& options, bool server = false);
Status read_tier_options(const TierOptionsCli& options, RuntimeOptions& to);

}  // namespace quire::cli
