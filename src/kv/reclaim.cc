// Making room for a tenant, in this order: unread blocks of the class that needs room, by its
// evictor; slabs of other classes, emptied by evicting and moving; leased blocks, by expiry; parked
// sequences, by age. Blocks of running sequences, pinned blocks, and blocks within the share of
// another tenant (kv/tenants.h) stay.
#include <algorithm>

#include "kv/core.h"
#include "kv/planted.h"

namespace quire {

BlockRef CacheCore::take(SizeClass c, const SequenceState& s) {
  const TenantSlot by = shares_waived ? kNoTenant : store.tenant(s.cursor.root);
  for (;;) {
    BlockRef b = pool.take(c);
    if (!b.empty() || !make_room(c, by)) return b;
  }
}

bool CacheCore::make_room(SizeClass c, TenantSlot by) {
  // From time to time, a class that evicts its own blocks checks whether another class keeps blocks
  // that are worth less.
  if (arena.class_count() > 1 && ++evictions_since_balance > 32 + pool.ledger().cached / 16) {
    evictions_since_balance = 0;
    if (empty_slab(c, Reason::evicted_slab, by, 0.5 * store.last_evicted_density())) return true;
  }
  return store.evict_one(c, Reason::evicted_capacity, by) ||
         empty_slab(c, Reason::evicted_slab, by) || evict_elsewhere(c, by) ||
         store.evict_own(by, Reason::evicted_capacity, false) || store.evict_leased(by) ||
         store.evict_own(by, Reason::evicted_capacity, true) || unpark_one();
}

// A slab of another class can only be emptied if its busy blocks fit into that class's other slabs.
// So cached blocks there are evicted to make room for them.
bool CacheCore::evict_elsewhere(SizeClass c, TenantSlot by) {
  for (std::uint32_t i = 0; i < arena.class_count(); ++i)
    if (SizeClass{i} != c && store.evict_one(SizeClass{i}, Reason::evicted_slab, by)) return true;
  return false;
}

// Whether the step could fit at all if everything that is not in use were evicted. Checked first,
// so that a step which cannot fit evicts nothing.
bool CacheCore::feasible(std::span<const std::uint32_t> need) const {
  std::uint64_t wanted = 0, held = 0;
  for (std::size_t i = 0; i < need.size(); ++i) {
    const SizeClass c{static_cast<std::uint32_t>(i)};
    const Ledger l = pool.ledger(c);
    wanted += need[i] * arena.class_bytes(c);
    if (parked_first == nullptr) held += (l.referenced + l.fenced) * arena.class_bytes(c);
  }
  return wanted + held <= std::max(arena.budget_bytes(), arena.stats().committed_bytes);
}

// Gives back one slab of a class other than `for_class`: the one whose cached blocks are worth
// least per byte, if that is less than `worth`. Blocks in use, pinned and leased ones are moved to
// other slabs of their class.
bool CacheCore::empty_slab(std::optional<SizeClass> for_class, Reason reason, TenantSlot by,
                           double worth) {
  std::optional<SlabId> best;
  const bool may_move = pool.steps_in_flight() == 0 || planted(Bug::move_in_flight);
  for (std::uint32_t i = 0; i < arena.class_count(); ++i) {
    const SizeClass c{i};
    if (for_class == c) continue;
    const ArenaStats stats = arena.stats(c);
    const std::uint64_t free_extents = stats.extents - stats.extents_in_use;
    arena.for_each_slab(c, [&](SlabId slab) {
      if (arena.slab(slab).draining) return;
      const BlockPool::SlabUse use = pool.slab_use(slab);
      std::uint64_t to_move = use.busy;
      double loss = 0;
      pool.for_each_block(slab, [&](BlockId b) {
        if (pool.state(b) != BlockState::cached) return;
        if (store.protects(b, by))
          ++to_move;
        else
          loss += store.value(b);
      });
      if (to_move > 0 && (!may_move || to_move > free_extents - use.free)) return;
      constexpr double kMoveCost = 1e4;  // nanoseconds of copying a block
      loss = (loss + kMoveCost * static_cast<double>(to_move)) /
             static_cast<double>(arena.slab_bytes(c));
      if (loss >= worth) return;
      worth = loss;
      best = slab;
    });
  }
  if (!best) return false;

  const SizeClass c = arena.slab(*best).size_class;
  const std::uint64_t slabs = arena.stats(c).slabs;
  slab_blocks.clear();
  pool.for_each_block(*best, [&](BlockId b) { slab_blocks.push_back(b); });
  arena.drain(*best);
  for (const BlockId b : slab_blocks) {
    if (!pool.alive(b)) continue;  // left with the subtree of one before it
    if (pool.state(b) == BlockState::cached && !store.protects(b, by) &&
        store.evict_with_descendants(b, reason, by))
      continue;
    if (pool.movable(b) && pool.move(b)) continue;
    break;
  }
  if (arena.stats(c).slabs < slabs) return true;
  arena.stop_draining(*best);
  return false;
}

void CacheCore::park(SequenceState& s) {
  s.phase = Phase::parked;
  s.parked_next = nullptr;
  s.parked_previous = parked_last;
  (parked_last ? parked_last->parked_next : parked_first) = &s;
  parked_last = &s;
  ++parked_count;
}

void CacheCore::unpark(SequenceState& s) {
  (s.parked_previous ? s.parked_previous->parked_next : parked_first) = s.parked_next;
  (s.parked_next ? s.parked_next->parked_previous : parked_last) = s.parked_previous;
  s.parked_next = s.parked_previous = nullptr;
  s.phase = Phase::running;
  --parked_count;
}

bool CacheCore::unpark_one() {
  for (SequenceState* s = parked_first; s != nullptr; s = s->parked_next) {
    if (!s->options.recomputable) continue;
    preempt(*s, Preempt::recompute);
    return true;
  }
  return false;
}

std::uint64_t CacheCore::resize(std::uint64_t budget_bytes) {
  arena.set_budget(std::min<std::uint64_t>(budget_bytes, arena.memory().reserved_bytes()));
  store.tenants().set_budget(arena.budget_bytes());
  while (arena.over_budget_bytes() > 0)
    if (!empty_slab({}, Reason::evicted_shrink, kNoTenant) && !store.evict_leased() &&
        !unpark_one())
      break;
  return std::max(arena.budget_bytes(), arena.stats().committed_bytes);
}

}  // namespace quire
