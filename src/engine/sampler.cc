#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/random.h"

namespace quire {
namespace {

Error out_of_range(const char* field, const char* range) {
  return Error{Code::invalid, std::string(field) + " must be " + range};
}

// Most words of a mask allow or forbid all their 32 tokens.
void keep_allowed(std::span<float> logits, std::span<const std::uint32_t> allowed) {
  for (std::size_t first = 0; first < logits.size(); first += 32) {
    const std::uint32_t word = allowed[first / 32];
    if (word == ~0u) continue;
    const std::size_t count = std::min<std::size_t>(32, logits.size() - first);
    for (std::size_t i = 0; i < count; ++i)
      if (!(word >> i & 1)) logits[first + i] = -INFINITY;
  }
}

}  // namespace

Status SamplingOptions::check(std::uint32_t vocabulary) const {
  // Written so that NaN fails too.
  if (!(temperature >= 0 && temperature <= 100))
    return out_of_range("temperature", "between 0 and 100");
  if (!(top_p > 0 && top_p <= 1)) return out_of_range("top_p", "above 0 and at most 1");
  if (!(min_p >= 0 && min_p <= 1)) return out_of_range("min_p", "between 0 and 1");
  if (!(typical_p > 0 && typical_p <= 1)) return out_of_range("typical_p", "above 0 and at most 1");
  if (!(repetition_penalty > 0 && repetition_penalty <= 10))
    return out_of_range("repetition_penalty", "above 0 and at most 10");
  if (!(std::abs(presence_penalty) <= 2))
    return out_of_range("presence_penalty", "between -2 and 2");
  if (!(std::abs(frequency_penalty) <= 2))
    return out_of_range("frequency_penalty", "between -2 and 2");
  for (const auto& [token, bias] : logit_bias) {
    if (token >= vocabulary)
      return Error{Code::invalid, "logit_bias names token " + std::to_string(token) +
                                      "; the vocabulary has " + std::to_string(vocabulary)};
    if (!(std::abs(bias) <= 100)) return out_of_range("logit_bias values", "between -100 and 100");
  }
  return {};
}

void TokenCounts::add_prompt(std::span<const TokenId> tokens) {
  for (const TokenId t : tokens) counts_[t].in_prompt = true;
}

void TokenCounts::add_generated(TokenId token) { ++counts_[token].generated; }

Sampler::Sampler(const VectorKernels& vector, std::uint32_t vocabulary)
    : vector_(vector), nucleus_(vector, vocabulary) {
  candidates_.reserve(vocabulary);
  parts_.reserve(vocabulary / 256 + 1);
}

double Sampler::log_sum_exp(std::span<const float> logits) const {
  return log_sum_exp(logits, vector_.max(logits.data(), static_cast<std::uint32_t>(logits.size())));
}

double Sampler::log_sum_exp(std::span<const float> logits, float max) const {
  const auto n = static_cast<std::uint32_t>(logits.size());
  return max + std::log(static_cast<double>(vector_.sum_exp(logits.data(), max, n)));
}

// Fills candidates_ with the `count` best (or all), best first; ties by id.
void Sampler::take_best(std::span<const float> logits, std::size_t count,
                        std::span<const TokenId> of) {
  nucleus_.keep_best(logits, count, of);
  candidates_.clear();
  for (std::size_t i = 0; i < nucleus_.tokens().size(); ++i)
    candidates_.push_back({nucleus_.values()[i], nucleus_.tokens()[i], 0});
}

std::vector<TokenLogprob> Sampler::top(std::span<const float> logits, std::uint32_t count) {
  const double sum = log_sum_exp(logits);
  take_best(logits, std::min<std::size_t>(count, logits.size()));
  std::vector<TokenLogprob> best;
  for (const Candidate& c : candidates_)
    best.push_back({c.token, static_cast<float>(c.logit - sum)});
  return best;
}

void Sampler::shape(std::span<float> logits, const SamplingOptions& o,
                    const TokenCounts& counts) const {
  for (const auto& [token, bias] : o.logit_bias) logits[token] += bias;
  if (!o.penalizes()) return;
  for (const auto& [token, count] : counts.counts_) {
    float& logit = logits[token];
    logit = logit > 0 ? logit / o.repetition_penalty : logit * o.repetition_penalty;
    if (count.generated > 0)
      logit -= o.presence_penalty + o.frequency_penalty * static_cast<float>(count.generated);
  }
}

Choice Sampler::sample(std::span<float> logits, const SamplingOptions& options,
                       const TokenCounts& counts, std::uint32_t choice, std::uint32_t position,
                       const TokenLimits& limits) {
  Choice chosen;
  const auto n = static_cast<std::uint32_t>(logits.size());
  const std::uint32_t best = vector_.argmax(logits.data(), n);
  const double sum = options.logprob ? log_sum_exp(logits, logits[best]) : 0;
  if (options.logprobs > 0) chosen.alternatives = top(logits, options.logprobs);
  const bool shaped = !options.logit_bias.empty() || options.penalizes();
  // The logprob is the model's own, so remember the raw logits that shaping is about to change.
  std::vector<std::pair<TokenId, float>> raw;
  if (shaped) {
    for (const auto& [token, bias] : options.logit_bias) raw.emplace_back(token, logits[token]);
    for (const auto& [token, count] : counts.counts_) raw.emplace_back(token, logits[token]);
    shape(logits, options, counts);
  }
  for (const TokenId t : limits.banned) logits[t] = -INFINITY;
  if (!limits.allowed.empty()) {
    keep_allowed(logits, limits.allowed);
    if (vector_.max(logits.data(), n) == -INFINITY) {
      chosen.token = kNoToken;
      return chosen;
    }
  }
  if (options.temperature == 0 || options.top_k == 1) {
    const bool raw_best = !shaped && limits.banned.empty() && limits.allowed.empty();
    chosen.token = raw_best ? best : vector_.argmax(logits.data(), n);
  } else {
    scaled_.resize(n);
    vector_.shifted(logits.data(), vector_.max(logits.data(), n),
                    std::min(1 / options.temperature, 1e30f), n, scaled_.data());
    chosen.token = draw({scaled_}, options, counter_unit(options.seed, choice, position));
  }
  float logit = logits[chosen.token];
  if (logit == -INFINITY) {
    chosen.token = kNoToken;
    return chosen;
  }
  for (const auto& [token, value] : raw)
    if (token == chosen.token) {
      logit = value;
      break;
    }
  if (options.logprob) chosen.logprob = static_cast<float>(logit - sum);
  return chosen;
}

// The index in `values` that a draw falls on. Finds the part first, then the value in it.
std::size_t Sampler::draw_from(std::span<const float> values, double unit) {
  constexpr std::size_t kPart = 256;
  const auto n = values.size();
  parts_.clear();
  double total = 0;
  for (std::size_t first = 0; first < n; first += kPart) {
    parts_.push_back(
        vector_.sum_exp(&values[first], 0, static_cast<std::uint32_t>(std::min(kPart, n - first))));
    total += parts_.back();
  }
  double left = unit * total;
  std::size_t last = 0;  // with any mass: where rounding left nothing of the draw
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    if (parts_[p] == 0) continue;
    last = p * kPart;
    if (left >= parts_[p]) {
      left -= parts_[p];
      continue;
    }
    for (std::size_t i = p * kPart; i < std::min(n, (p + 1) * kPart); ++i) {
      const double w = weight(values[i]);
      if (w == 0) continue;
      last = i;
      if ((left -= w) < 0) return last;
    }
    return last;
  }
  return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
}

TokenId Sampler::draw(const Scaled& scaled, const SamplingOptions& o, double unit) {
  const std::span<const float> values = scaled.values;
  const auto n = static_cast<std::uint32_t>(values.size());
  if (o.top_k == 0 && o.typical_p >= 1) {
    if (o.top_p >= 1 && o.min_p == 0) return static_cast<TokenId>(draw_from(values, unit));
    const float floor = std::log(o.min_p);
    if (o.top_p < 1) {
      const float total =
          scaled.tokens.empty() ? vector_.sum_exp(values.data(), 0, n) : scaled.total;
      nucleus_.keep_mass(values, o.top_p * total, scaled.tokens);
      nucleus_.keep_above(floor);
    } else {
      nucleus_.keep_above(values, floor, scaled.tokens);
    }
    if (nucleus_.tokens().empty()) return 0;  // nothing may be drawn
    return nucleus_.tokens()[draw_from(nucleus_.values(), unit)];
  }

  take_best(values, o.top_k > 0 ? std::min<std::size_t>(o.top_k, n) : n, scaled.tokens);
  if (candidates_.empty()) return 0;  // as above
  double total = 0;
  for (Candidate& c : candidates_) total += c.weight = weight(c.logit);

  if (o.typical_p <
      1) {  // keep the tokens whose surprise is closest to the entropy, up to that mass
    double entropy = 0;
    for (const Candidate& c : candidates_)
      if (c.weight > 0) entropy -= c.weight / total * std::log(c.weight / total);
    const auto distance = [&](const Candidate& c) {
      return c.weight > 0 ? std::abs(-std::log(c.weight / total) - entropy) : INFINITY;
    };
    std::stable_sort(
        candidates_.begin(), candidates_.end(),
        [&](const Candidate& a, const Candidate& b) { return distance(a) < distance(b); });
    double mass = 0;
    std::size_t kept = 0;
    while (kept < candidates_.size() && mass < o.typical_p * total)
      mass += candidates_[kept++].weight;
    candidates_.resize(kept);
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& a, const Candidate& b) { return a.weight > b.weight; });
    total = mass;
  }
  if (o.top_p < 1) {
    double mass = 0;
    std::size_t kept = 0;
    while (kept < candidates_.size() && mass < o.top_p * total) mass += candidates_[kept++].weight;
    candidates_.resize(std::max<std::size_t>(kept, 1));
  }
  if (o.min_p > 0) {
    const double floor = o.min_p * candidates_.front().weight;
    while (candidates_.size() > 1 && candidates_.back().weight < floor) candidates_.pop_back();
  }
  double mass = 0;
  for (const Candidate& c : candidates_) mass += c.weight;
  double left = unit * mass;
  for (const Candidate& c : candidates_)
    if ((left -= c.weight) < 0) return c.token;
  return candidates_.front().token;  // rounding left nothing
}

}  // namespace quire
