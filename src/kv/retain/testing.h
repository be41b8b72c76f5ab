// kv/retain/testing.h - small made-up layers for tests of retention.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/retain/retain.h"

namespace quire {

inline std::vector<float> noise(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<float> x(count);
  for (float& v : x) {
    v = -6;
    for (int i = 0; i < 12; ++i) v += static_cast<float>(random.unit());  // roughly normal
  }
  return x;
}

// Every signal there is, so that any method can be asked.
struct MadeUpLayer {
  MadeUpLayer(std::uint32_t kv_heads, std::uint32_t group, std::uint32_t slots, std::uint64_t seed,
              std::uint32_t dim = 8)
      : keys(noise(std::size_t{kv_heads} * slots * dim, seed + 1)),
        values(noise(std::size_t{kv_heads} * slots * dim, seed + 2)),
        mean(noise(std::size_t{kv_heads} * group * dim, seed + 3)),
        covariance(std::size_t{kv_heads} * group * dim * dim),
        output_norms(std::size_t{kv_heads} * slots),
        marks(slots) {
    Random random(seed);
    for (std::vector<float>* x : {&window_mass, &total_mass, &peak_mass, &below_counts}) {
      x->resize(std::size_t{kv_heads} * group * slots);
      for (float& v : *x) v = static_cast<float>(random.unit() * random.unit());
    }
    for (float& v : output_norms) v = 0.5f + static_cast<float>(random.unit());
    for (std::uint32_t h = 0; h < kv_heads * group; ++h)
      for (std::uint32_t i = 0; i < dim; ++i) covariance[(std::size_t{h} * dim + i) * dim + i] = 1;
    for (std::uint32_t s = 0; s < slots; ++s)
      marks[s] = s == 0 ? kMarkSpecial : s % 17 == 5 ? kMarkPunctuation : 0;
    in = {.kv_heads = kv_heads,
          .group = group,
          .key_dim = dim,
          .value_dim = dim,
          .slots = slots,
          .seed = seed,
          .keys = keys,
          .values = values,
          .window_mass = window_mass,
          .total_mass = total_mass,
          .peak_mass = peak_mass,
          .below_counts = below_counts,
          .query_mean = mean,
          .query_covariance = covariance,
          .output_norms = output_norms,
          .gates = {},
          .marks = marks};
  }
  MadeUpLayer(const MadeUpLayer&) = delete;

  std::vector<float> keys, values, mean, covariance, output_norms;
  std::vector<float> window_mass, total_mass, peak_mass, below_counts;
  std::vector<std::uint8_t> marks;
  RetainInput in;
};

// Scores of several layers, laid out as choose() wants them.
struct Scored {
  std::uint32_t kv_heads;
  std::vector<float> scores, weights;
  std::vector<std::uint32_t> begin = {0};

  explicit Scored(std::uint32_t heads) : kv_heads(heads) {}

  void add(const RetainMethod& method, const RetainInput& in) {
    const std::size_t at = scores.size(), count = std::size_t{in.kv_heads} * in.slots;
    scores.resize(at + count);
    method.score(method, in, std::span(scores).subspan(at));
    if (method.weigh) {
      weights.resize(at + count);
      method.weigh(method, in, std::span(weights).subspan(at));
    }
    for (std::uint32_t h = 0; h < in.kv_heads; ++h) begin.push_back(begin.back() + in.slots);
  }
  // A lane of scores written by hand.
  void lane(const std::vector<float>& x) {
    scores.insert(scores.end(), x.begin(), x.end());
    begin.push_back(static_cast<std::uint32_t>(scores.size()));
  }
  KeepSets choose(const RetainMethod& method, std::uint32_t budget) const {
    return quire::choose(method, {kv_heads, scores, weights, begin}, budget);
  }
};

inline RetainMethod method_named(std::string_view name) { return find_retain_method(name).value(); }

inline std::vector<std::uint32_t> kept(const KeepSets& keep, std::uint32_t lane) {
  const auto slots = keep.lane(lane);
  return {slots.begin(), slots.end()};
}

// One layer scored and chosen at once.
inline KeepSets keep_of(const RetainMethod& method, const RetainInput& in, std::uint32_t budget) {
  Scored scored(in.kv_heads);
  scored.add(method, in);
  return scored.choose(method, budget);
}

}  // namespace quire
