// kv/retain/zip.cc - what a pass that reads the context again looks at: KVzip, KVCompose. Blind to
// the question, so the result can be shared.
#include <algorithm>

#include "kv/retain/score.h"

namespace quire {
namespace {

void peak(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  CHECK(in.peak_mass.size() == std::size_t{in.query_heads()} * in.slots);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    for (std::uint32_t s = 0; s < in.slots; ++s) {
      float most = 0;
      for (std::uint32_t q = h * in.group; q < (h + 1) * in.group; ++q)
        most = std::max(most, in.peak_mass[std::size_t{q} * in.slots + s]);
      retain::head_of(scores, in, h)[s] = most;
    }
}

// A head's own opinion plus that of its layer.
void peak_and_layer(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    retain::group_mean(in, in.peak_mass, h, retain::head_of(scores, in, h));
  for (std::uint32_t s = 0; s < in.slots; ++s) {
    float sum = 0;
    for (std::uint32_t h = 0; h < in.kv_heads; ++h) sum += retain::head_of(scores, in, h)[s];
    for (std::uint32_t h = 0; h < in.kv_heads; ++h)
      retain::head_of(scores, in, h)[s] += sum / static_cast<float>(in.kv_heads);
  }
}
}  // namespace

extern const RetainMethod kRetainKvzip = {
    .name = "kvzip",
    .source = "KVzip, arXiv 2505.23416",
    .summary = "what the model needs to repeat the context, all heads competing",
    .needs = Signal::peak_mass,
    .rule = BudgetRule::global,
    .pages = RetainPages::ragged,
    .score = peak,
    .sinks = 4,
};
extern const RetainMethod kRetainKvzipUniform = {
    .name = "kvzip-uniform",
    .source = "KVzip, arXiv 2505.23416",
    .summary = "what the model needs to repeat the context, the same count for every head",
    .needs = Signal::peak_mass,
    .score = peak,
    .sinks = 4,
};
extern const RetainMethod kRetainKvCompose = {
    .name = "kvcompose",
    .source = "KVCompose, arXiv 2509.05165",
    .summary = "as KVzip, but heads of a layer keep equal counts and layers compete",
    .needs = Signal::peak_mass,
    .rule = BudgetRule::composite,
    .score = peak_and_layer,
};

}  // namespace quire
