// kv/retain/window.cc - methods that look at nothing but where a token stands, and the two anchors
// that every comparison needs.
#include "base/random.h"
#include "kv/retain/score.h"

namespace quire {
namespace {

void drawn(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    for (std::uint32_t s = 0; s < in.slots; ++s)
      retain::head_of(scores, in, h)[s] =
          static_cast<float>(counter_unit(in.seed, in.layer * in.kv_heads + h, s));
}

// The task says where the answer stands; the rest of the budget goes to the newest tokens.
void answer_first(const RetainMethod& m, const RetainInput& in, std::span<float> scores) {
  CHECK(in.marks.size() == in.slots);
  retain::newest(m, in, scores);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    for (std::uint32_t s = 0; s < in.slots; ++s)
      if (in.marks[s] & kMarkAnswer)
        retain::head_of(scores, in, h)[s] += static_cast<float>(in.slots);
}
}  // namespace

extern const RetainMethod kRetainStreaming = {
    .name = "streaming",
    .source = "StreamingLLM, arXiv 2309.17453",
    .summary = "the first four tokens and the most recent ones",
    .when = RetainWhen::both,
    .pages = RetainPages::same_slots,
    .score = retain::newest,
    .sinks = 4,
};
extern const RetainMethod kRetainWindow = {
    .name = "window",
    .source = "sliding window",
    .summary = "the most recent tokens only",
    .when = RetainWhen::both,
    .pages = RetainPages::same_slots,
    .score = retain::newest,
};
extern const RetainMethod kRetainRandom = {
    .name = "random",
    .source = "anchor",
    .summary = "drawn by a seeded lot, each head its own; what a method must beat",
    .when = RetainWhen::both,
    .score = drawn,
};
extern const RetainMethod kRetainOracle = {
    .name = "oracle",
    .source = "anchor",
    .summary = "the first four tokens, those that hold the answer, and the most recent ones",
    .needs = Signal::marks,
    .pages = RetainPages::same_slots,
    .shares = RetainClass::question,
    .score = answer_first,
    .sinks = 4,
};

}  // namespace quire
