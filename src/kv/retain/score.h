// kv/retain/score.h - what scorers share: plain sums in slot order, so that every machine keeps the
// same slots.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "kv/retain/retain.h"

namespace quire::retain {

inline std::span<const float> row_of(std::span<const float> rows, std::size_t row,
                                     std::size_t width) {
  return rows.subspan(row * width, width);
}

inline float dot(std::span<const float> a, std::span<const float> b) {
  float sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

inline float norm(std::span<const float> x) { return std::sqrt(dot(x, x)); }

inline std::span<float> head_of(std::span<float> scores, const RetainInput& in,
                                std::uint32_t head) {
  return scores.subspan(std::size_t{head} * in.slots, in.slots);
}

// out[slot] = mean over the head's query heads of mass[query head][slot].
inline void group_mean(const RetainInput& in, std::span<const float> mass, std::uint32_t head,
                       std::span<float> out) {
  CHECK(mass.size() == std::size_t{in.query_heads()} * in.slots);
  for (std::uint32_t s = 0; s < in.slots; ++s) {
    float sum = 0;
    for (std::uint32_t g = 0; g < in.group; ++g)
      sum += mass[(std::size_t{head} * in.group + g) * in.slots + s];
    out[s] = sum / static_cast<float>(in.group);
  }
}

// A score that keeps the newest slots.
inline void newest(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    for (std::uint32_t s = 0; s < in.slots; ++s) head_of(scores, in, h)[s] = static_cast<float>(s);
}

// In place: x becomes exp(x) over its sum.
void softmax(std::span<float> x);

}  // namespace quire::retain
