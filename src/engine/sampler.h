// engine/sampler.h - from logits to a token: greedy, or drawn from a shaped distribution.
//
// The order is: logit bias, penalties, temperature, top-k, typical, top-p, min-p, draw. Temperature
// 0 (or top-k 1) is greedy; ties go to the lowest id. The draw depends on (seed, choice, position)
// and nothing else, so that a sequence samples the same tokens alone or in any batch.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "engine/nucleus.h"
#include "kernels/draw.h"
#include "kernels/vector.h"

namespace quire {

struct SamplingOptions {
  float temperature = 0;
  std::uint32_t top_k = 0;  // 0: all
  float top_p = 1, min_p = 0, typical_p = 1;
  float repetition_penalty =
      1;  // of tokens in prompt or answer: divides positive logits, multiplies negative ones
  float presence_penalty = 0,
        frequency_penalty = 0;  // of tokens in the answer: subtracted once, and per occurrence
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  std::uint64_t seed = 0;
  bool logprob = true;         // report the chosen token's; false spares a look at all others
  std::uint32_t logprobs = 0;  // how many alternatives to report

  bool penalizes() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0;
  }
  Status check(std::uint32_t vocabulary) const;  // names the field that makes no sense
};

// Which tokens a sequence has seen; kept only where a penalty needs it.
class TokenCounts {
 public:
  void add_prompt(std::span<const TokenId> tokens);
  void add_generated(TokenId token);

 private:
  friend class Sampler;
  struct Count {
    bool in_prompt = false;
    std::uint32_t generated = 0;
  };
  std::unordered_map<TokenId, Count> counts_;
};

// What may not be drawn, besides what the options say.
struct TokenLimits {
  std::span<const TokenId> banned = {};
  std::span<const std::uint32_t> allowed = {};  // a bit per token; empty: all of them
};

struct TokenLogprob {
  TokenId token;
  float logprob;
};

struct Choice {
  TokenId token = 0;
  float logprob = 0;                       // of the model's own distribution, before any shaping
  std::vector<TokenLogprob> alternatives;  // most likely first
};

class Sampler {
 public:
  Sampler(const VectorKernels& vector, std::uint32_t vocabulary);

  // `logits` is working space and may be changed. The token is kNoToken if the limits allow none.
  Choice sample(std::span<float> logits, const SamplingOptions& options, const TokenCounts& counts,
                std::uint32_t choice, std::uint32_t position, const TokenLimits& limits = {});

  // Describes the first half of sample() for a device that runs it. False: the device cannot, and
  // sample() must do all of it. Appends the changes of logits.
  static bool describe(const SamplingOptions& options, const TokenCounts& counts,
                       std::uint32_t choice, std::uint32_t position,
                       std::span<const TokenId> banned, DrawRow& row,
                       std::vector<DrawChange>& changes);
  // The second half: chooses the token that sample() would have chosen.
  Choice choose(const Drawn& drawn, const SamplingOptions& options, std::uint32_t choice,
                std::uint32_t position);

  // The `count` most likely tokens with their log-probabilities, most likely first.
  std::vector<TokenLogprob> top(std::span<const float> logits, std::uint32_t count);
  double log_sum_exp(std::span<const float> logits) const;
  double log_sum_exp(std::span<const float> logits, float max) const;

 private:
  struct Candidate {
    float logit;
    TokenId token;
    double weight;  // exp(logit - max), unnormalized
  };
  // Logits less the largest, over temperature: of all tokens, or of `tokens` only.
  struct Scaled {
    std::span<const float> values;
    std::span<const TokenId> tokens = {};
    float total = 0;  // of these: the sum of exp over all
  };
  void take_best(std::span<const float> logits, std::size_t count,
                 std::span<const TokenId> of = {});
  void shape(std::span<float> logits, const SamplingOptions& options,
             const TokenCounts& counts) const;
  TokenId draw(const Scaled& scaled, const SamplingOptions& options, double unit);
  std::size_t draw_from(std::span<const float> values, double unit);
  double weight(float scaled) const {  // exp, the same on every machine
    return vector_.sum_exp(&scaled, 0, 1);
  }

  const VectorKernels& vector_;
  std::vector<Candidate> candidates_;  // best first after take_best
  Nucleus nucleus_;
  std::vector<double> parts_;  // scratch of draw_from
  std::vector<float> scaled_;  // logits less the largest, over temperature
};

}  // namespace quire
