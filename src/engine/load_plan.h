// engine/load_plan.h - load, compute, or both: how much of a stored prefix is worth loading.
//
// Computing runs from the front. Loading needs nothing before it and runs from the back, so the two
// can meet. All times are measured: the tier tells what a load costs, the engine what a prompt token
// costs by its position.
//
//   const LoadPlan plan = plan_load({.from = 0, .to = 31, .tokens_per_block = 32,
//                                    .block_bytes = 737280}, tier.cost(), prefill_cost, true);
//   plan.first;      // blocks from here on are loaded; those before are computed meanwhile
#pragma once

#include <cstdint>
#include <span>

#include "engine/prefill_cost.h"
#include "kv/tier/tier.h"

namespace quire {

struct LoadSpan {
  std::uint32_t from = 0, to = 0;  // blocks that are stored and not in memory
  std::uint32_t tokens_per_block = 32;
  std::uint64_t block_bytes = 0;
};

struct LoadPlan {
  std::uint32_t first = 0;  // == to: loading would not help
  bool waits = true;        // nothing is computed while it loads
  double seconds = 0;       // until it is there; 0: not known
};

// What blocks of several tiers cost, as if they came from one, one after the other.
struct TierShare {
  TierCost cost;
  std::uint64_t bytes = 0;
};
TierCost joint_cost(std::span<const TierShare> shares);

// `may_compute`: nobody else waits for the processor.
LoadPlan plan_load(const LoadSpan& span, const TierCost& tier, const PrefillCost& prefill,
                   bool may_compute);

}  // namespace quire
