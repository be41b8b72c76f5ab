// engine/service_stats.h - what the engine counts, as plain data: copied between steps, read by
// metrics, benchmarks and tests.
//
//   const ServiceStats s = service.snapshot();
//   s.tokens_generated; s.first_token_seconds.sum; s.cache.tokens_hit;
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/histogram.h"
#include "engine/draft/tally.h"
#include "engine/request.h"
#include "engine/step_costs.h"
#include "kv/cache.h"
#include "kv/tier/tier_link.h"

namespace quire {

struct ServiceStats {
  ServiceStats();

  // Gauges.
  std::uint32_t requests_running = 0, requests_waiting = 0;
  std::uint32_t waiting_for_prefix = 0;  // of the waiting: another request computes their prefix
  std::uint32_t sequences_running = 0;

  // Adapters of requests that run, and of those that wait, with commas. Replaced, never changed; null:
  // none.
  struct AdapterNames {
    std::string running, waiting;
  };
  std::shared_ptr<const AdapterNames> adapters;

  // Counters.
  std::uint64_t requests_submitted = 0;
  std::array<std::uint64_t, 5> finished{};            // choices, by Finish
  std::array<std::uint64_t, kFailureKinds> failed{};  // requests, by FailureKind, refused ones too
  std::array<std::uint64_t, kReasonCount> missed{};   // admissions, by why the next token missed
  std::uint64_t prompt_tokens = 0, prompt_tokens_cached = 0, prompt_tokens_computed = 0;
  std::uint64_t prompt_tokens_loaded = 0;  // cached, and came from a tier
  std::uint64_t prompt_tokens_remote = 0;  // of these: from one that machines share
  std::uint64_t prompt_tokens_waited = 0;  // cached, because others computed them meanwhile
  std::uint64_t tokens_generated = 0;
  std::uint64_t preemptions_recompute = 0, preemptions_parked = 0;
  double saved_prefill_seconds = 0;  // estimate
  // Of requests with kv.resident: bytes read from tiers while steps ran; those that were there before
  // they were waited for; blocks that tiers lost; tokens computed beside them.
  std::uint64_t cold_bytes = 0, cold_hidden_bytes = 0, lost_blocks = 0, cold_tokens = 0;
  DraftTallies drafts{};  // by entry of draft_sources()

  // Where the engine thread's time goes.
  std::uint64_t steps = 0, step_rows = 0;
  std::uint64_t steps_ahead = 0;  // of these, submitted before the last one's tokens were known
  double step_seconds = 0;        // all of them, from picking rows to telling sinks
  double forward_seconds = 0;     // in the model's kernels
  double sample_seconds = 0;      // from logits to tokens
  double idle_seconds = 0;
  StepCostFit step_costs;  // what a step takes, by what it computes; drafts left out

  Histogram first_token_seconds, inter_token_seconds, token_seconds, request_seconds;
  Histogram queue_seconds, prefill_seconds, decode_seconds, inference_seconds;
  Histogram request_prompt_tokens, request_generated_tokens, request_computed_tokens;
  Histogram request_choices, request_tokens_max, rows_per_step;
  Histogram lookup_seconds;  // matching a prompt with the prefix index, and taking what it has

  // Of the cache, at the same moment.
  CacheStats cache{};
  BlockTimes block_times;
  std::vector<TierLinkStats> tiers;       // what lies below memory, the fastest first
  double kv_usage = 0;                    // share of the budget that running answers and pins hold
  double key_error = 0, value_error = 0;  // lost in sealing: mean square, relative; sampled
  // Bytes in the prefix index of the tenants seen first. The names are replaced, never changed.
  static constexpr std::size_t kTenantsMax = 100;
  std::shared_ptr<const std::vector<std::string>> tenants;
  std::array<std::uint64_t, kTenantsMax> tenant_bytes{}, tenant_quotas{};  // quota 0: none
};

}  // namespace quire
