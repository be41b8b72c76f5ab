// A step in two halves: on a device it is queued and waited for later; elsewhere room is made for it,
// and it is computed at its end.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/runtime.h"

namespace quire {

Result<Runtime::Pending> Runtime::submit(std::span<const StepItem> items,
                                         std::span<const std::uint32_t> from) {
  CHECK(!items.empty() && (from.empty() || from.size() == items.size()));
  const Geometry& geometry = cache_->geometry(items[0].sequence->root());
  needs_.clear();
  for (const StepItem& item : items) {
    CHECK(item.tokens.size() == 1 && item.logits == Logits::last && !item.retain && !item.select &&
          &cache_->geometry(item.sequence->root()) == &geometry);
    needs_.push_back({item.sequence, 1});
  }
  TRY(Reservation room, cache_->reserve(needs_));
  Pending step{std::move(room), 0, clock_.now()};
  if (!model_->device()) return step;
  if (greedy_.size() < items.size()) greedy_.resize(items.size());
  const Nanoseconds before = forward_time_;
  const Queue queue{from, &step.ticket};
  TRY_STATUS(forward(step.room, items, geometry, nullptr, greedy_.data(), nullptr, &queue));
  forward_time_ = before;  // it has only begun
  return step;
}

Result<std::span<const BestToken>> Runtime::finish(Pending& step, std::span<const StepItem> items) {
  const auto dropped = [](const StepItem& item) { return item.tokens.empty(); };
  if (greedy_.size() < items.size()) greedy_.resize(items.size());
  const std::span<BestToken> best(greedy_.data(), items.size());
  if (model_->device()) {
    TRY_STATUS(model_->finish(step.ticket, best));
    const Nanoseconds now = clock_.now();
    forward_time_ += now - std::max(step.submitted, finished_);
    finished_ = now;
  } else if (const auto first = std::ranges::find_if_not(items, dropped); first != items.end()) {
    const std::size_t rows =
        items.size() - static_cast<std::size_t>(std::ranges::count_if(items, dropped));
    float* const logits = logits_.cover(rows * config().vocabulary);
    TRY_STATUS(
        forward(step.room, items, cache_->geometry(first->sequence->root()), logits, nullptr));
    find_best(logits, rows);
    for (std::size_t i = items.size(), from = rows; from > 0 && i-- > 0;)  // to their places
      if (!dropped(items[i])) best[i] = best[--from];
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (dropped(items[i])) continue;
    if (!std::isfinite(best[i].logprob)) items[i].sequence->mark_faulted();
    step.room.commit(i, items[i].tokens);
  }
  return std::span<const BestToken>(best);
}

}  // namespace quire
