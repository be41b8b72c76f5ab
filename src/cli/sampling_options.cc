#include "cli/sampling_options.h"

#include <random>

#include "cli/help.h"

namespace quire::cli {

void SamplingOptionsCli::add(CLI::App& app, bool one_answer) {
  SamplingOptions& s = values.sampling;
  const std::string group = "Sampling";
  const auto option = [&](const char* names, auto& into, const char* help) {
    return app.add_option(names, into, help)->group(group);
  };
  option("-n,--max-tokens", values.tokens_max, "most tokens to generate (128)");
  option("--temperature", s.temperature, "0 is greedy");
  option("--top-k", s.top_k, "keep the k most likely tokens");
  option("--top-p", s.top_p, "keep the likeliest tokens that make up this mass");
  option("--min-p", s.min_p, "drop tokens below this share of the likeliest");
  option("--typical-p", s.typical_p, "locally typical sampling")->group(kRare);
  option("--repetition-penalty", s.repetition_penalty, "1: none");
  option("--presence-penalty", s.presence_penalty, "subtracted once a token was used")
      ->group(kRare);
  option("--frequency-penalty", s.frequency_penalty, "subtracted per use")->group(kRare);
  option("--logit-bias", bias, "TOKEN=BIAS, repeatable")->group(kRare);
  option("--seed", seed, "the same seed draws the same tokens");
  option("--stop", values.stop, "stop before this text, repeatable");
  if (!one_answer) {
    option("--choices", values.choices, "answers to one prompt (1)");
    option("--beams", values.beams, "beam search of this width");
    option("--length-penalty", values.length_penalty, "of beam scores (1)")->group(kRare);
    option("--logprobs", logprobs, "report this many alternatives per token");
  }
  option("--chunk", values.chunk, "prompt tokens per step")->group(kRare);
  app.add_flag("--ignore-eos", values.ignore_end, "go on past the end token")->group(group);
}

Result<GenerateOptions> SamplingOptionsCli::generate_options() const {
  GenerateOptions o = values;
  o.sampling.seed = seed >= 0 ? static_cast<std::uint64_t>(seed) : std::random_device{}();
  o.sampling.logprobs = logprobs > 0 ? static_cast<std::uint32_t>(logprobs) : 0;
  if (logprobs > 100) return Error{Code::invalid, "--logprobs must be at most 100"};
  for (const std::string& b : bias) {
    const std::size_t at = b.find('=');
    try {
      o.sampling.logit_bias.emplace_back(
          static_cast<TokenId>(std::stoul(b.substr(0, at))),
          std::stof(b.substr(at == std::string::npos ? b.size() : at + 1)));
    } catch (const std::exception&) {
      return Error{Code::invalid, "--logit-bias '" + b + "' is not TOKEN=BIAS"};
    }
  }
  return o;
}

}  // namespace quire::cli
