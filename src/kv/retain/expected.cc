// kv/retain/expected.cc - Expected Attention: what queries still to come will attend to on average.
//
// Queries are taken to be Gaussian with the mean and covariance seen so far, turned to the positions
// ahead. Then the mean of exp(q.k / sqrt(d)) has a closed form, and is scaled by the value's size.
#include <algorithm>
#include <cmath>

#include "kv/retain/score.h"

namespace quire {
namespace {

void expected_attention(const RetainMethod& m, const RetainInput& in, std::span<float> scores) {
  const std::uint32_t d = in.key_dim, sinks = std::min(m.sinks, in.slots);
  CHECK(in.query_mean.size() == std::size_t{in.query_heads()} * d);
  const float by_mean = 1.0f / std::sqrt(static_cast<float>(d));
  const float by_spread = 0.5f / static_cast<float>(d);
  std::vector<float> logits(in.slots - sinks), turned(d);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    const std::span<float> out = retain::head_of(scores, in, h);
    std::fill(out.begin(), out.end(), 0.0f);
    for (std::uint32_t q = h * in.group; q < (h + 1) * in.group; ++q) {
      const std::span<const float> mean = retain::row_of(in.query_mean, q, d);
      for (std::uint32_t s = sinks; s < in.slots; ++s) {
        const std::span<const float> key =
            retain::row_of(in.keys, std::size_t{h} * in.slots + s, d);
        float z = retain::dot(mean, key) * by_mean;
        if (!in.query_covariance.empty()) {
          std::fill(turned.begin(), turned.end(), 0.0f);
          for (std::uint32_t i = 0; i < d; ++i) {
            const std::span<const float> row =
                retain::row_of(in.query_covariance, std::size_t{q} * d + i, d);
            for (std::uint32_t j = 0; j < d; ++j) turned[j] += key[i] * row[j];
          }
          z += retain::dot(turned, key) * by_spread;
        }
        logits[s - sinks] = z;
      }
      retain::softmax(logits);
      for (std::uint32_t s = sinks; s < in.slots; ++s)
        out[s] += logits[s - sinks] / static_cast<float>(in.group);
    }
    if (!m.by_value) continue;
    for (std::uint32_t s = sinks; s < in.slots; ++s)
      out[s] = (out[s] + static_cast<float>(m.epsilon)) *
               retain::norm(retain::row_of(in.values, std::size_t{h} * in.slots + s, in.value_dim));
  }
}
}  // namespace

extern const RetainMethod kRetainExpected = {
    .name = "expected",
    .source = "Expected Attention, arXiv 2510.00636",
    .summary = "what Gaussian queries at the next 512 positions would attend to, times value size",
    .when = RetainWhen::prompt_end,
    .needs = Signal::keys | Signal::values | Signal::query_moments,
    .score = expected_attention,
    .sinks = 4,
    .epsilon = 0.02,
};

}  // namespace quire
