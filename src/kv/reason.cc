#include "kv/reason.h"

#include <cstddef>

namespace quire {
namespace {

struct Row {
  Reason reason;
  ReasonKind kind;
  std::string_view name;
};

#define ROW(kind, name) \
  { Reason::name, ReasonKind::kind, #name }
constexpr Row kRows[] = {
    ROW(none, none),
    ROW(miss, reuse_disabled),
    ROW(miss, below_minimum),
    ROW(miss, model_mismatch),
    ROW(miss, adapter_mismatch),
    ROW(miss, tenant_mismatch),
    ROW(miss, salt_mismatch),
    ROW(miss, format_mismatch),
    ROW(miss, tokens_diverged),
    ROW(miss, template_changed),
    ROW(miss, never_seen),
    ROW(miss, evicted),
    ROW(miss, expired),
    ROW(miss, cleared),
    ROW(miss, restarted),
    ROW(miss, tier_not_allowed),
    ROW(miss, load_failed),
    ROW(miss, load_too_slow),
    ROW(miss, in_flight),
    ROW(miss, window_dropped),
    ROW(miss, budget_evicted),
    ROW(miss, block_partial),
    ROW(eviction, evicted_capacity),
    ROW(eviction, evicted_slab),
    ROW(eviction, evicted_shrink),
    ROW(eviction, evicted_expired),
    ROW(eviction, evicted_cleared),
    ROW(eviction, evicted_quota),
    ROW(eviction, evicted_window),
    ROW(eviction, evicted_orphan),
    ROW(block, hit),
    ROW(block, hit_partial),
    ROW(block, hit_in_flight),
    ROW(block, stored),
    ROW(block, stored_duplicate),
    ROW(block, not_stored_private),
    ROW(block, not_stored_disabled),
    ROW(block, not_stored_faulted),
    ROW(block, forked),
    ROW(block, copied_on_write),
    ROW(block, moved),
    ROW(block, rolled_back),
    ROW(block, pinned),
    ROW(block, unpinned),
    ROW(request, admitted),
    ROW(request, refused_too_large),
    ROW(request, refused_pin_budget),
    ROW(request, refused_quota),
    ROW(request, deferred_no_room),
    ROW(request, preempted_recompute),
    ROW(request, preempted_parked),
    ROW(request, resumed),
    ROW(request, cancelled),
    ROW(request, failed),
    ROW(request, finished),
};
#undef ROW

constexpr bool in_order() {
  for (std::size_t i = 0; i < std::size(kRows); ++i)
    if (kRows[i].reason != static_cast<Reason>(i)) return false;
  return std::size(kRows) == kReasonCount;
}
static_assert(in_order());

}  // namespace

std::string_view reason_name(Reason reason) { return kRows[static_cast<std::size_t>(reason)].name; }

ReasonKind reason_kind(Reason reason) { return kRows[static_cast<std::size_t>(reason)].kind; }

std::optional<Reason> find_reason(std::string_view name) {
  for (const Row& row : kRows)
    if (row.name == name) return row.reason;
  return std::nullopt;
}

}  // namespace quire
