// cli/sampling_options.h - how to generate, as options of `run` and `chat`.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "engine/client.h"

namespace quire::cli {

struct SamplingOptionsCli {
  GenerateOptions values;
  int logprobs = -1;
  std::vector<std::string> bias;
  std::int64_t seed = -1;

  void add(CLI::App& app, bool one_answer = false);  // a chat has no choices to show
  bool logprobs_wanted() const { return logprobs >= 0; }
  Result<GenerateOptions> generate_options() const;
};

}  // namespace quire::cli
