// kv/retain/profile.cc - methods that first ask what kind of head it is: FastGen, DuoAttention.
#include <algorithm>
#include <numeric>

#include "kv/retain/score.h"

namespace quire {
namespace {

constexpr double kFrequentShare = 0.3, kLocalShare = 0.3;

// FastGen's candidate sets are nested, so one order of slots holds them all. The whole part of a
// score names the smallest set a slot is in: 4 special tokens, 3 punctuation, 2 frequent, 1 local,
// 0 the rest.
void nested_sets(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  CHECK(in.marks.size() == in.slots);
  const auto frequent = static_cast<std::uint32_t>(kFrequentShare * in.slots);
  const auto local = static_cast<std::uint32_t>(kLocalShare * in.slots);
  std::vector<float> mass(in.slots);
  std::vector<std::uint32_t> order(in.slots);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    const std::span<float> out = retain::head_of(scores, in, h);
    retain::group_mean(in, in.total_mass, h, mass);
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return mass[a] > mass[b]; });
    for (std::uint32_t rank = 0; rank < in.slots; ++rank) {
      const std::uint32_t s = order[rank];
      const float tier = in.marks[s] & kMarkSpecial       ? 4
                         : in.marks[s] & kMarkPunctuation ? 3
                         : rank < frequent                ? 2
                         : s + local >= in.slots          ? 1
                                                          : 0;
      out[s] = tier + 0.5f * static_cast<float>(in.slots - rank) / static_cast<float>(in.slots);
    }
  }
}

// What the last queries attended to: the attention to be recovered.
void window_mean(const RetainMethod&, const RetainInput& in, std::span<float> weights) {
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    retain::group_mean(in, in.window_mass, h, retain::head_of(weights, in, h));
}

// A head's gate, at each of its slots. Without calibrated gates: the attention that the last
// queries gave to what a streaming head would not have.
void gate(const RetainMethod& m, const RetainInput& in, std::span<float> weights) {
  std::vector<float> mass(in.slots);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    float open = 0;
    if (!in.gates.empty()) {
      open = in.gates[h];
    } else {
      retain::group_mean(in, in.window_mass, h, mass);
      for (std::uint32_t s = m.sinks; s + m.recent < in.slots; ++s) open += mass[s];
    }
    const std::span<float> out = retain::head_of(weights, in, h);
    std::fill(out.begin(), out.end(), open);
  }
}
}  // namespace

extern const RetainMethod kRetainFastGen = {
    .name = "fastgen",
    .source = "FastGen, arXiv 2310.01801",
    .summary = "per head the cheapest of special, punctuation, frequent, local, all",
    .needs = Signal::total_mass | Signal::window_mass | Signal::marks,
    .rule = BudgetRule::profile,
    .pages = RetainPages::ragged,
    .shares = RetainClass::question,
    .score = nested_sets,
    .weigh = window_mean,
    .window = 64,
    .threshold = 0.95,
};
extern const RetainMethod kRetainDuo = {
    .name = "duo",
    .source = "after DuoAttention, arXiv 2410.10819",
    .summary = "heads that retrieve keep everything, the others sinks and recent tokens",
    .needs = Signal::window_mass,
    .rule = BudgetRule::split,
    .pages = RetainPages::ragged,
    .shares = RetainClass::question,
    .score = retain::newest,
    .weigh = gate,
    .sinks = 64,
    .recent = 256,
    .window = 64,
};

}  // namespace quire
