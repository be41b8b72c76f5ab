// replay/trace_plan.h - what an amount of memory buys for a recorded workload: `quire plan --trace` and
// `"trace"` of POST /v1/kv/plan.
//
//   TRY(const Json est, plan_trace(trace, {.geometry = g, .cache_bytes = 8ull << 30}));
//   est["hit_rate"], est["first_token_ms"]["p50"], est["by_memory"]
#pragma once

#include <vector>

#include "kernels/geometry.h"
#include "replay/what_if.h"

namespace quire {

struct TracePlanRequest {
  Geometry geometry;              // of the model that is planned for, as it would be stored
  std::uint64_t cache_bytes = 0;  // without weights
  StepCosts costs = {};           // not known: as recorded
  std::vector<VirtualTier> tiers = {};
  std::vector<double> times = {};  // other amounts of memory: so many times this one
};

// Whole blocks that an arena of this size holds, as the planner counts.
std::uint64_t blocks_that_fit(const Geometry& geometry, std::uint64_t cache_bytes);

Result<Json> plan_trace(const AskedTrace& trace, const TracePlanRequest& request);

}  // namespace quire
