// cli/sampling_options.h - how to generate, as options of `run` and `chat`.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/client.h"

namespace quire::cli {

inline constexpr std::uint32_t kUntilTheEnd = 0xffffffff;

// Tokens that an answer may have: as many as were asked for, or what the context leaves.
inline std::uint32_t answer_room(std::uint32_t tokens_max, const Runtime& runtime,
                                 std::size_t prompt_tokens) {
  const std::size_t context = runtime.context();
  if (tokens_max != kUntilTheEnd) return tokens_max;
  return static_cast<std::uint32_t>(context - std::min(context, prompt_tokens));
}

struct SamplingOptionsCli {
  GenerateOptions values;  // all but how tokens are drawn
  std::optional<float> temperature, top_p, min_p, typical_p;
  std::optional<float> repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<std::uint32_t> top_k, tokens_max;
  int logprobs = -1;
  std::vector<std::string> bias;
  std::int64_t seed = -1;

  void add(CLI::App& app, bool one_answer = false);  // a chat has no choices to show
  bool logprobs_wanted() const { return logprobs >= 0; }
  // What is not given is drawn as `defaults` say (engine/sampling_defaults.h), and goes on until
  // the model ends it or the context is full: tokens_max is then kUntilTheEnd.
  Result<GenerateOptions> generate_options(const SamplingOptions& defaults) const;
};

}  // namespace quire::cli
