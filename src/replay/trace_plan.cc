#include "replay/trace_plan.h"

#include <fmt/format.h>

#include <cmath>

#include "base/stop.h"
#include "engine/plan.h"

namespace quire {

std::uint64_t blocks_that_fit(const Geometry& geometry, std::uint64_t cache_bytes) {
  return make_plan(geometry, {.memory_bytes = cache_bytes}).max_tokens / geometry.tokens_per_block;
}

Result<Json> plan_trace(const AskedTrace& trace, const TracePlanRequest& request) {
  const std::uint32_t p = request.geometry.tokens_per_block;
  double token_bytes = 0;
  for (const LayerGroup& g : request.geometry.groups)
    if (g.kind != GroupKind::recent) token_bytes += request.geometry.bytes_per_token(g);
  VirtualWorkerOptions options = what_if_options(
      trace, {.capacity_blocks = blocks_that_fit(request.geometry, request.cache_bytes),
              .block_size = p,
              .evictor = {},
              .costs = request.costs,
              .step_tokens = 0,
              .prompt_tokens = 0,
              .sequences_max = 0,
              .context = 0,
              .tiers = request.tiers});
  if (options.capacity_blocks == 0)
    return Error{Code::exhausted,
                 fmt::format("{} bytes of cache hold no block", request.cache_bytes)};
  const TracedCache& r = trace.recorded;
  if (!request.costs.known() && r.block_size > 0 && r.block_bytes > 0)
    options.costs =
        with_bytes(options.costs, token_bytes * r.block_size / static_cast<double>(r.block_bytes));
  const auto block_bytes = static_cast<std::uint64_t>(std::llround(token_bytes * p));
  TRY(const WhatIf w, what_if(trace.asks, options));
  Json out = what_if_json(w, options, trace, block_bytes);
  out["cache_bytes"] = request.cache_bytes;
  out["costs_from"] = request.costs.known() ? "given" : trace.costs.known() ? "trace" : "made up";
  Json others = Json::array();
  for (const double times : request.times) {
    const auto bytes = static_cast<std::uint64_t>(static_cast<double>(request.cache_bytes) * times);
    VirtualWorkerOptions other = options;
    other.capacity_blocks = blocks_that_fit(request.geometry, bytes);
    if (other.capacity_blocks == 0) continue;
    TRY(const WhatIf o, what_if(trace.asks, other));
    others.push_back({{"cache_bytes", bytes},
                      {"capacity_blocks", other.capacity_blocks},
                      {"hit_rate", o.hit_rate()},
                      {"first_token_ms", o.first_token_s.p50 * 1e3},
                      {"first_token_ms_p99", o.first_token_s.p99 * 1e3}});
  }
  out["by_memory"] = std::move(others);
  if (stop_asked()) return Error{Code::cancelled, "the trace takes too long to run"};
  return out;
}

}  // namespace quire
