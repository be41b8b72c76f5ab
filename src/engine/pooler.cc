#include "engine/pooler.h"

#include <algorithm>

namespace quire {

Pooler::Pooler(const Runtime& runtime, Pooling how, std::uint32_t prompt_length, RootId root)
    : how_(how),
      prompt_length_(prompt_length),
      next_(how == Pooling::last ? prompt_length - 1 : 0),
      end_(how == Pooling::cls ? 1 : prompt_length),
      tap_(runtime.config(), runtime.cache().geometry(root),
           runtime.cache().geometry(root).places.back().group),
      sum_(runtime.config().hidden) {}

void Pooler::open(SequenceOptions& options) const {
  if (how_ != Pooling::last) options.serve_max = 0;
}

// Tokens that are computed again after a preemption were added before.
Tap* Pooler::tap(std::uint32_t past, std::uint32_t rows) {
  const std::uint32_t first = std::max(past, next_), end = std::min(past + rows, end_);
  tap_.watch_states(first, end - std::min(first, end), static_cast<std::uint32_t>(sum_.size()));
  return first < end ? &tap_ : nullptr;
}

void Pooler::after_step(Stepper&, Sequence& s) {
  for (; next_ < std::min(s.length(), end_); ++next_) {
    const float* const state = tap_.state(next_);
    if (state == nullptr) return;  // it was not computed: there will be no embedding
    for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += state[i];
  }
}

void Pooler::report(ProgramReport& report) const {
  if (next_ < end_) return;
  const double count = how_ == Pooling::mean ? prompt_length_ : 1;
  for (const double value : sum_) report.pooled.push_back(static_cast<float>(value / count));
}

}  // namespace quire
