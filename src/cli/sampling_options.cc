#include "cli/sampling_options.h"

#include <random>

#include "cli/help.h"

namespace quire::cli {

void SamplingOptionsCli::add(CLI::App& app, bool one_answer) {
  const std::string group = "Sampling";
  const auto option = [&](const char* names, auto& into, const char* help) {
    return app.add_option(names, into, help)->group(group);
  };
  option("-n,--max-tokens,--n-predict", tokens_max, "most tokens to generate (until the end)");
  option("--temperature,--temp", temperature, "0 is greedy (the model's, or 0.7)");
  option("--top-k", top_k, "keep the k most likely tokens (the model's, or all)");
  option("--top-p", top_p, "keep the likeliest tokens of this mass (the model's, or 0.9)");
  option("--min-p", min_p, "drop tokens below this share of the likeliest (0)");
  option("--typical-p", typical_p, "locally typical sampling")->group(kRare);
  option("--repetition-penalty", repetition_penalty, "1: none (the model's, or 1)");
  option("--presence-penalty", presence_penalty, "subtracted once a token was used")->group(kRare);
  option("--frequency-penalty", frequency_penalty, "subtracted per use")->group(kRare);
  option("--logit-bias", bias, "TOKEN=BIAS, repeatable")->group(kRare);
  option("--seed", seed, "the same seed draws the same tokens");
  option("--stop", values.stop, "stop before this text, repeatable");
  if (!one_answer) {
    option("--choices", values.choices, "answers to one prompt (1)");
    option("--beams", values.beams, "beam search of this width")->group(kRare);
    option("--length-penalty", values.length_penalty, "of beam scores (1)")->group(kRare);
    option("--logprobs", logprobs, "report this many alternatives per token");
  }
  option("--chunk", values.chunk, "prompt tokens per step")->group(kRare);
  app.add_flag("--ignore-eos", values.ignore_end, "go on past the end token")->group(group);
}

Result<GenerateOptions> SamplingOptionsCli::generate_options(
    const SamplingOptions& defaults) const {
  GenerateOptions o = values;
  SamplingOptions& s = o.sampling;
  if (o.beams == 0) s = defaults;  // beams rank by the model's own probabilities
  s.temperature = temperature.value_or(s.temperature);
  s.top_k = top_k.value_or(s.top_k);
  s.top_p = top_p.value_or(s.top_p);
  s.min_p = min_p.value_or(s.min_p);
  s.typical_p = typical_p.value_or(s.typical_p);
  s.repetition_penalty = repetition_penalty.value_or(s.repetition_penalty);
  s.presence_penalty = presence_penalty.value_or(s.presence_penalty);
  s.frequency_penalty = frequency_penalty.value_or(s.frequency_penalty);
  o.tokens_max = tokens_max.value_or(kUntilTheEnd);
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
