// cli/replay_live.h - `quire replay FILE --url URL`: a trace sent to a server that runs.
#pragma once

#include <string>

#include "cli/command.h"

namespace quire::cli {

struct LiveCliOptions {
  std::string url, model, api_key;
  std::uint32_t vocabulary = 32000;
  double timeout = 600;
};
void add_live_options(CLI::App& app, LiveCliOptions& o);
int replay_live(const std::string& file, double speed, const LiveCliOptions& o, bool json);

}  // namespace quire::cli
