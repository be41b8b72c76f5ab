// kv/reason.h - the closed list of reasons: every decision of the cache carries one.
//
// The same code feeds the journal, metrics, `explain`, traces and replay. Names are part of the
// API: the miss reasons are those of GET /v1/kv/requests/{id}. Add at the end of a section; a test
// reads names back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace quire {

enum class Reason : std::uint8_t {
  none,

  // Why a prompt token was not served from the cache.
  reuse_disabled,
  below_minimum,
  model_mismatch,
  adapter_mismatch,
  tenant_mismatch,
  salt_mismatch,
  format_mismatch,
  tokens_diverged,
  template_changed,
  never_seen,
  evicted,
  expired,
  cleared,
  restarted,
  tier_not_allowed,
  load_failed,
  load_too_slow,
  in_flight,
  window_dropped,
  budget_evicted,
  block_partial,

  // Why a cached block left memory.
  evicted_capacity,  // its own class needed room
  evicted_slab,      // its slab was emptied for another class
  evicted_shrink,    // the memory budget sank
  evicted_expired,   // its lease ran out
  evicted_cleared,   // somebody asked
  evicted_quota,     // its tenant was over quota
  evicted_window,    // left the attention window of its group
  evicted_orphan,    // what it follows was evicted

  // What happened to a request's blocks.
  hit,
  hit_partial,          // slots of a partly equal block were copied
  hit_in_flight,        // waited for the same prefix being computed
  stored,               // published in the index
  stored_duplicate,     // the same block was there already: kept once
  not_stored_private,   // after pure_until
  not_stored_disabled,  // the request asked to leave no trace
  not_stored_faulted,   // not finite, or the request failed
  forked,
  copied_on_write,
  moved,  // from a tier into memory
  rolled_back,
  pinned,
  unpinned,

  // What happened to a request.
  admitted,
  refused_too_large,  // can never fit
  refused_pin_budget,
  refused_quota,
  deferred_no_room,  // waits for memory
  preempted_recompute,
  preempted_parked,
  resumed,
  cancelled,
  failed,
  finished,
};
inline constexpr std::size_t kReasonCount = static_cast<std::size_t>(Reason::finished) + 1;

enum class ReasonKind : std::uint8_t { none, miss, eviction, block, request };

std::string_view reason_name(Reason reason);  // "tokens_diverged"
ReasonKind reason_kind(Reason reason);
std::optional<Reason> find_reason(std::string_view name);

}  // namespace quire
