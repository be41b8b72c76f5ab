// kv/retain/heavy.cc - what has been attended to so far: H2O, its age-corrected sibling, and
// Scissorhands.
#include "kv/retain/score.h"

namespace quire {
namespace {

void total(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    retain::group_mean(in, in.total_mass, h, retain::head_of(scores, in, h));
}

// Divided by how many queries could see the slot, for a prompt whose slots are all present.
void per_query(const RetainMethod& m, const RetainInput& in, std::span<float> scores) {
  total(m, in, scores);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    for (std::uint32_t s = 0; s < in.slots; ++s)
      retain::head_of(scores, in, h)[s] /= static_cast<float>(in.slots - s);
}

// What stayed below average for longest goes first, however strong it once was.
void seldom_below(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    const std::span<float> out = retain::head_of(scores, in, h);
    retain::group_mean(in, in.below_counts, h, out);
    for (float& x : out) x = -x;
  }
}
}  // namespace

extern const RetainMethod kRetainH2o = {
    .name = "h2o",
    .source = "H2O, arXiv 2306.14048",
    .summary = "most attention in sum; half of the budget is for recent tokens",
    .when = RetainWhen::both,
    .needs = Signal::total_mass,
    .shares = RetainClass::question,
    .score = total,
    .recent_share = 0.5,
};
extern const RetainMethod kRetainObserved = {
    .name = "observed",
    .source = "after H2O, arXiv 2306.14048",
    .summary = "most attention per query that could see the token",
    .needs = Signal::total_mass,
    .shares = RetainClass::question,
    .score = per_query,
};
extern const RetainMethod kRetainScissorhands = {
    .name = "scissorhands",
    .source = "Scissorhands, arXiv 2305.17118",
    .summary = "seldom below average attention among the last 64 queries",
    .when = RetainWhen::both,
    .needs = Signal::below_counts,
    .shares = RetainClass::question,
    .score = seldom_below,
    .recent_share = 0.5,
    .window = 64,
};

}  // namespace quire
