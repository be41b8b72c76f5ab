// The two halves of sampling where a device does the first (kernels/draw.h).
#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "engine/sampler.h"

namespace quire {

bool Sampler::describe(const SamplingOptions& o, const TokenCounts& counts, std::uint32_t choice,
                       std::uint32_t position, std::span<const TokenId> banned, DrawRow& row,
                       std::vector<DrawChange>& changes) {
  const bool greedy = o.temperature == 0 || o.top_k == 1;
  if (o.logprobs > 0) return false;
  // Typical tokens are not the likely ones; many candidates are no shorter than all of them.
  if (!greedy && (o.top_k > kDrawListMax / 2 || (o.typical_p < 1 && o.top_k == 0))) return false;
  for (std::size_t i = 0; i < o.logit_bias.size(); ++i)  // two for one token add up in their order
    for (std::size_t j = 0; j < i; ++j)
      if (o.logit_bias[i].first == o.logit_bias[j].first) return false;
  row.mode = greedy                       ? DrawMode::best
             : o.top_k > 0                ? DrawMode::top
             : o.top_p < 1 || o.min_p > 0 ? DrawMode::above
                                          : DrawMode::whole;
  row.inverse = std::min(1 / o.temperature, 1e30f);
  row.floor = std::log(o.min_p);
  row.top_p = o.top_p;
  row.top_k = o.top_k;
  row.repetition = o.repetition_penalty;
  row.logprob = o.logprob;
  row.unit = counter_unit(o.seed, choice, position);
  row.first_change = static_cast<std::uint32_t>(changes.size());
  for (const auto& [token, bias] : o.logit_bias) changes.push_back({token, bias});
  row.biased = static_cast<std::uint32_t>(o.logit_bias.size());
  if (o.penalizes()) {
    for (const auto& [token, count] : counts.counts_)
      changes.push_back({token, count.generated > 0
                                    ? o.presence_penalty +
                                          o.frequency_penalty * static_cast<float>(count.generated)
                                    : 0.0f});
    row.penalized = static_cast<std::uint32_t>(counts.counts_.size());
  }
  for (const TokenId token : banned) changes.push_back({token, 0});
  row.banned = static_cast<std::uint32_t>(banned.size());
  return true;
}

Choice Sampler::choose(const Drawn& drawn, const SamplingOptions& o, std::uint32_t choice,
                       std::uint32_t position) {
  Choice chosen;
  chosen.token = drawn.token;
  float logit = drawn.logit;
  if (drawn.list) {
    const std::span<const TokenId> tokens(drawn.list->tokens, drawn.count);
    chosen.token = draw({{drawn.list->values, drawn.count}, tokens, drawn.total}, o,
                        counter_unit(o.seed, choice, position));
    logit = drawn.list->logits[std::ranges::lower_bound(tokens, chosen.token) - tokens.begin()];
  }
  if (o.logprob)
    chosen.logprob =
        static_cast<float>(logit - (drawn.max + std::log(static_cast<double>(drawn.sum))));
  return chosen;
}

}  // namespace quire
