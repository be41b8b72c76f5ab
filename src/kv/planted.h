// kv/planted.h - bugs on purpose, so that the simulator can show it would notice them.
//
// A test build (QUIRE_PLANTED_BUGS) breaks one rule at a time; sim/planted_test.cc expects each to
// be caught. In the product planted() is the constant false and leaves no code behind.
//
//   if (planted(Bug::skip_copy_on_write)) return false;
#pragma once

#include <cstdint>

namespace quire {

enum class Bug : std::uint8_t {
  none,
  // arena and pool
  free_skips_fence,     // a block let go during a step is free at once
  move_in_flight,       // blocks are moved while a step may read them
  skip_reference,       // a shared block is not counted
  overlapping_extents,  // the last extent of a slab reaches into the next
  slab_bytes_lost,      // a returned slab stays on the books
  // keys
  drop_salt,           // a client's salt is left out of key and tag
  drop_tenant,         // the tenant is left out of the root
  skip_token_compare,  // a key is believed without looking at the tokens
  // index
  partial_one_too_many,  // a partial match claims one token more
  lose_hash_entry,       // erasing leaves a hole that cuts off what was behind it
  forget_cursor,         // a cursor is not moved when its node goes
  // evictors and leases
  evict_in_use,           // a block with readers may leave
  evict_interior,         // a block leaves before those that follow it
  evict_pinned,           // pins do not count
  evictor_keeps_removed,  // a block taken up again stays in the evictor
  // tenants
  take_shares,       // what is within another's share may be taken
  exceed_quota,      // quotas do not count
  exceed_leases,     // neither do limits of leases and pins
  unlisted_lease,    // a lease without an end is in no list
  forget_used_root,  // a root makes way though somebody uses it
  // reserve, commit, publish
  skip_copy_on_write,      // a shared tail is written in place
  write_into_cached,       // a tail that only the index shares is written in place
  publish_early,           // a block is published one token before it is full
  publish_rejected,        // rejected drafts count as accepted
  publish_impure,          // pure_until is ignored
  publish_faulted,         // a failed sequence still publishes
  leak_on_failed_reserve,  // blocks of a step that did not fit are kept
  stale_offsets,           // tables keep the old place of a moved block
  forget_group,            // a hit does not look at window groups
  window_too_short,        // a window frees one block too early
  state_not_restored,      // a rejected step leaves its state behind
  // engine: for the simulator of the whole engine
  drop_adapter,           // adapters are left out of roots and keys
  landing_not_fenced,     // room for a block on its way from a tier may be moved
  adopt_before_arrival,   // a block is used while its bytes are on their way
  adopt_failed,           // a block whose bytes could not be read is used
  free_while_read,        // room of a request that left is used while a tier still writes into it
  name_without_prefix,    // a block is stored under its own tokens alone
  cut_ignores_every,      // behind a cut, steps go on past the places where the program acts
  snapshot_short_of_cut,  // the state of a prompt that ends before its cut is kept for longer ones
  share_rereading,        // answers that fork share how far the context was read again
  parked_never_restart,   // what a parked budget holds stays, whoever runs out of memory
  trust_guesses,          // what comes after a wrong guess is told, too
  keep_wrong_guess,       // the row of a wrong guess stays in the sequence
  guesses_not_counted,    // penalties do not count tokens of drafts
};
inline constexpr std::uint8_t kKvBugCount = static_cast<std::uint8_t>(Bug::state_not_restored) + 1;
inline constexpr std::uint8_t kBugCount = static_cast<std::uint8_t>(Bug::guesses_not_counted) + 1;

#ifdef QUIRE_PLANTED_BUGS
inline Bug planted_bug = Bug::none;
inline bool planted(Bug bug) { return planted_bug == bug; }
#else
constexpr bool planted(Bug) { return false; }
#endif

}  // namespace quire
