#include "replay/virtual_executor.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/storage.h"

namespace quire {

VirtualExecutor::VirtualExecutor(ManualClock& clock, const VirtualExecutorOptions& o)
    : clock_(clock),
      costs_(o.costs),
      traits_{.numerics = 0x766972, .rows_max = o.rows_max, .in_flight = 1, .draws = true} {
  config_.architecture = config_.name = "virtual";
  config_.layers = 1;
  config_.vocabulary = o.vocabulary;
  config_.context = o.context;
  config_.ropes.emplace_back();
  config_.per_layer.emplace_back();
}

TokenId VirtualExecutor::recite(std::vector<TokenId> text) {
  if (free_.empty()) {
    CHECK(texts_.size() < config_.vocabulary);
    free_.push_back(static_cast<TokenId>(texts_.size()));
    texts_.emplace_back();
  }
  const TokenId number = free_.back();
  free_.pop_back();
  texts_[number] = std::move(text);
  return number;
}

void VirtualExecutor::forget(TokenId number) {
  texts_[number] = {};
  free_.push_back(number);
}

// One lane of one number per token: blocks as small as there are.
Geometry VirtualExecutor::geometry(std::uint32_t tokens_per_block,
                                   const StoragePolicy& policy) const {
  const LayerShape shape{
      .kind = GroupKind::full, .kv_heads = 1, .key_dim = 1, .value_dim = 1, .window = 0};
  return build_geometry({&shape, 1}, tokens_per_block, policy);
}

Result<StepTicket> VirtualExecutor::submit(const StepPlan& plan) {
  CHECK(submitted_ == completed_ && !plan.groups.empty());
  StepShape shape;
  const KvView& group = plan.groups[0];
  for (std::uint32_t i = 0; i < group.sequence_count; ++i)
    shape.add(group.sequences[i].row_count, group.sequences[i].past);
  constexpr double kLongestStep = 1e6;  // seconds, whatever the costs say
  takes_ = static_cast<Nanoseconds>(std::min(costs_.seconds(shape), kLongestStep) * 1e9);
  drawn_.assign(plan.wanted.size(), {.mode = DrawMode::best, .token = 0, .finite = 1});
  CHECK(plan.wanted.empty() || plan.want == StepWant::drawn);
  for (std::size_t i = 0; i < plan.wanted.size(); ++i) {
    const DrawRow& row = plan.draws.rows[i];
    if (row.biased == 0) continue;  // a prompt without an answer
    const std::vector<TokenId>& text = texts_[plan.draws.changes[row.first_change].token];
    const std::size_t next = std::size_t{plan.positions[plan.wanted[i]]} + 1;
    if (next < text.size()) drawn_[i].token = text[next];
  }
  return static_cast<StepTicket>(submitted_++);
}

Result<StepResult> VirtualExecutor::complete(StepTicket ticket) {
  CHECK(static_cast<std::uint32_t>(ticket) == completed_ && completed_ < submitted_);
  ++completed_;
  constexpr Nanoseconds kEnd = std::numeric_limits<Nanoseconds>::max() / 4;  // time stands still
  if (clock_.now() < kEnd) clock_.advance(takes_);
  return StepResult{.logits = {}, .best = {}, .drawn = drawn_};
}

}  // namespace quire
