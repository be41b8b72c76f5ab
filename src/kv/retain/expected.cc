// kv/retain/expected.cc - Expected Attention: what queries still to come will attend to on average.
//
// Queries are taken to be Gaussian with the mean and covariance seen so far, turned to the positions
// ahead. Then the mean of exp(q.k / sqrt(d)) has a closed form, and is scaled by the value's size.
#include <algorithm>
#include <cmath>

#include "kernels/mass.h"
#include "kv/retain/score.h"

namespace quire {
namespace {

void expected_attention(const RetainMethod& m, const RetainInput& in, std::span<float> scores) {
  const std::uint32_t d = in.key_dim, sinks = std::min(m.sinks, in.slots);
  CHECK(in.query_mean.size() == std::size_t{in.query_heads()} * d);
  const float by_mean = 1.0f / std::sqrt(static_cast<float>(d));
  const float by_spread = 0.5f / static_cast<float>(d);
  const MassKernels& kernels = mass_kernels(best_isa());  // all of them agree
  std::vector<float> logits(in.slots - sinks), spread(in.slots - sinks);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    const std::span<float> out = retain::head_of(scores, in, h);
    std::fill(out.begin(), out.end(), 0.0f);
    for (std::uint32_t q = h * in.group; q < (h + 1) * in.group; ++q) {
      const std::span<const float> mean = retain::row_of(in.query_mean, q, d);
      const std::span<const float> keys =
          in.keys.subspan((std::size_t{h} * in.slots + sinks) * d, spread.size() * d);
      if (!in.query_covariance.empty())
        kernels.quadratic(keys.data(), static_cast<std::uint32_t>(spread.size()), d,
                          in.query_covariance.data() + std::size_t{q} * d * d, spread.data());
      for (std::uint32_t s = sinks; s < in.slots; ++s) {
        const float z = retain::dot(mean, retain::row_of(keys, s - sinks, d)) * by_mean;
        logits[s - sinks] = z + spread[s - sinks] * by_spread;
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
