// kv/retain/snap.cc - what the last queries of the prompt looked at: SnapKV, PyramidKV, TOVA.
#include <algorithm>

#include "kv/retain/score.h"

namespace quire {
namespace {

// Attention of the window to everything before it, smoothed over neighbours so that a number keeps
// all of its digits. Beyond the ends the average sees zeros.
void pooled_window(const RetainMethod& m, const RetainInput& in, std::span<float> scores) {
  const std::uint32_t before = in.slots - std::min(in.slots, m.window);
  const std::uint32_t reach = m.kernel / 2;
  std::vector<float> mean(in.slots);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    const std::span<float> out = retain::head_of(scores, in, h);
    retain::group_mean(in, in.window_mass, h, mean);
    for (std::uint32_t s = 0; s < before; ++s) {
      float sum = 0;
      for (std::uint32_t i = s - std::min(s, reach); i < std::min(before, s + reach + 1); ++i)
        sum += mean[i];
      out[s] = sum / static_cast<float>(m.kernel);
    }
    std::fill(out.begin() + before, out.end(), 0.0f);  // protected as recent
  }
}

// One decision for the layer: all of its query heads are averaged.
void layer_window(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  CHECK(in.window_mass.size() == std::size_t{in.query_heads()} * in.slots);
  for (std::uint32_t s = 0; s < in.slots; ++s) {
    float sum = 0;
    for (std::uint32_t q = 0; q < in.query_heads(); ++q)
      sum += in.window_mass[std::size_t{q} * in.slots + s];
    for (std::uint32_t h = 0; h < in.kv_heads; ++h)
      retain::head_of(scores, in, h)[s] = sum / static_cast<float>(in.query_heads());
  }
}
}  // namespace

extern const RetainMethod kRetainSnapKv = {
    .name = "snapkv",
    .source = "SnapKV, arXiv 2404.14469",
    .summary = "what the last 64 prompt queries attended to, smoothed over 5 neighbours",
    .needs = Signal::window_mass,
    .shares = RetainClass::question,
    .score = pooled_window,
    .recent = 64,
    .window = 64,
    .kernel = 5,
};
extern const RetainMethod kRetainPyramidKv = {
    .name = "pyramidkv",
    .source = "PyramidKV, arXiv 2406.02069",
    .summary = "SnapKV's scores, with budgets that fall from the first layer to the last",
    .needs = Signal::window_mass,
    .rule = BudgetRule::pyramid,
    .shares = RetainClass::question,
    .score = pooled_window,
    .recent = 64,
    .window = 64,
    .kernel = 5,
};
extern const RetainMethod kRetainTova = {
    .name = "tova",
    .source = "TOVA, arXiv 2401.06104",
    .summary = "what the current query attends to, averaged over the layer's heads",
    .when = RetainWhen::both,
    .needs = Signal::window_mass,
    .pages = RetainPages::same_slots,
    .shares = RetainClass::question,
    .score = layer_window,
    .window = 1,
};

}  // namespace quire
