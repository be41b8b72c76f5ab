#include "kv/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "kv/planted.h"

namespace quire {
namespace {
constexpr std::uint32_t kNone = UINT32_MAX;
constexpr std::uint32_t kTidyEvery = 8;  // calls; extents free for that long are not needed soon
constexpr bool is_busy(BlockState s) {
  return s == BlockState::referenced || s == BlockState::fenced;
}
std::size_t pool_index(BlockState s) { return static_cast<std::size_t>(s); }
std::size_t pool_index(SizeClass c) { return static_cast<std::size_t>(c); }
}  // namespace

BlockPool::BlockPool(Arena& arena, const PoolOptions& options)
    : arena_(arena),
      listener_(options.listener),
      blocks_(options.blocks_max, LazyPages::huge),
      busy_in_slab_(arena.memory().reserved_bytes() / arena.memory().page_bytes()),
      blocks_max_(options.blocks_max),
      limbo_ticket_(options.blocks_max) {}

BlockPool::~BlockPool() {
  const Ledger l = ledger();
  CHECK(l.cached + l.referenced + l.fenced == 0);
}

BlockRef BlockPool::take(SizeClass c) {
  const std::uint32_t i = free_head_ != kNone ? free_head_ : high_water_;
  if (i == blocks_max_) return {};
  const std::optional<ArenaOffset> at = arena_.allocate(c, i);
  if (!at) return {};
  if (i == high_water_)
    ++high_water_;
  else
    free_head_ = blocks_[i].next;
  if (pool_index(c) >= tallies_.size()) tallies_.resize(arena_.class_count());
  blocks_[i] = {.owner = 0,
                .generation = blocks_[i].generation + 1,
                .readers = 1,
                .offset = *at,
                .next = kNone,
                .size_class = static_cast<std::uint32_t>(c),
                .fences = 0,
                .cached = false,
                .in_limbo = false};
  change_state(i, BlockState::free, BlockState::referenced);
  return {this, id_at(i)};
}

BlockRef BlockPool::hold(BlockId id) {
  if (!alive(id) || corpse(blocks_[id.index])) return {};
  add_reader(id.index);
  return {this, id};
}

CachedBlock BlockPool::cache(BlockId id) {
  const std::uint32_t i = check(id);
  CHECK(blocks_[i].readers > 0 &&
        !blocks_[i].cached);  // only a reader gives a block to the index, and once
  blocks_[i].cached = true;
  return {this, id};
}

BlockFence BlockPool::fence(BlockId id) {
  const std::uint32_t i = check(id);
  CHECK(!corpse(blocks_[i]) && blocks_[i].fences < UINT16_MAX);
  const BlockState from = state_of(blocks_[i]);
  ++blocks_[i].fences;
  settle(i, from);
  return {this, id};
}

std::uint64_t BlockPool::submit_step() { return ++submitted_; }

void BlockPool::complete_step(std::uint64_t ticket) {
  CHECK(ticket == completed_ + 1 && ticket <= submitted_);
  completed_ = ticket;
  while (limbo_head_ != kNone && limbo_ticket_[limbo_head_] <= completed_) {
    const std::uint32_t i = limbo_head_;
    limbo_head_ = blocks_[i].next;
    if (limbo_head_ == kNone) limbo_tail_ = kNone;
    blocks_[i].in_limbo = false;
    if (blocks_[i].fences > 0) continue;  // still fenced, by name
    change_state(i, BlockState::fenced, BlockState::free);
    free_block(i);
  }
}

BlockState BlockPool::state(BlockId id) const {
  return alive(id) ? state_of(blocks_[id.index]) : BlockState::free;
}

bool BlockPool::movable(BlockId id) const {
  const std::uint32_t i = check(id);
  if (planted(Bug::move_in_flight)) return !blocks_[i].in_limbo;
  return blocks_[i].fences == 0 && !blocks_[i].in_limbo && steps_in_flight() == 0;
}

bool BlockPool::move(BlockId id) {
  CHECK(movable(id));
  const std::uint32_t i = id.index;
  const SizeClass c = size_class(id);
  const ArenaOffset from = blocks_[i].offset;
  const std::optional<ArenaOffset> to = arena_.allocate(c, i, /*may_grow=*/false);
  if (!to) return false;
  arena_.memory().copy(static_cast<std::size_t>(*to) * kArenaUnit,
                       static_cast<std::size_t>(from) * kArenaUnit, arena_.class_bytes(c));
  if (is_busy(state_of(blocks_[i]))) {
    count_busy(c, *to, true);
    count_busy(c, from, false);
  }
  blocks_[i].offset = *to;
  arena_.free(from);
  if (listener_) listener_->block_moved(id, blocks_[i].owner, from, *to);
  return true;
}

void BlockPool::tidy() {
  if (steps_in_flight() > 0 && !planted(Bug::move_in_flight)) return;
  idle_.resize(arena_.class_count());
  const bool look = ++tidied_ % kTidyEvery == 0;
  for (std::size_t i = 0; i < idle_.size(); ++i) {
    const SizeClass c = static_cast<SizeClass>(i);
    const std::uint64_t free = ledger(c).free;
    Idle& idle = idle_[i];
    idle.free_least = std::min(idle.free_least, free);
    if (look) {
      idle.slabs = idle.free_least / arena_.slab_capacity(c);
      idle.free_least = free;
    }
    if (idle.slabs == 0) continue;
    --idle.slabs;
    if (free >= arena_.slab_capacity(c)) empty_a_slab(c);  // else it has found use
  }
}

// The blocks of its emptiest slab fit into the others.
void BlockPool::empty_a_slab(SizeClass c) {
  const std::optional<SlabId> slab = arena_.emptiest_slab(c);
  if (!slab) return;
  bool fenced = false;
  for_each_block(*slab, [&](BlockId b) { fenced |= !movable(b); });
  if (fenced) return;
  const bool spare = arena_.slab(*slab).in_use == 0;
  arena_.drain(*slab);
  if (spare) return;  // gone already
  bool room = true;
  for_each_block(*slab, [&](BlockId b) { room = room && move(b); });
  if (!room) arena_.stop_draining(*slab);
}

void BlockPool::copy(BlockId to, BlockId from) {
  CHECK(size_class(to) == size_class(from) && !(to == from));
  arena_.memory().copy(static_cast<std::size_t>(offset(to)) * kArenaUnit,
                       static_cast<std::size_t>(offset(from)) * kArenaUnit, bytes(to));
}

BlockId BlockPool::block_at(ArenaOffset offset) const {
  const std::uint32_t i = arena_.tag(offset);
  CHECK(i < high_water_ && blocks_[i].offset == offset);
  return id_at(i);
}

BlockPool::SlabUse BlockPool::slab_use(SlabId s) const {
  const SlabInfo info = arena_.slab(s);
  const std::uint32_t busy = busy_in_slab_[static_cast<std::size_t>(s)];
  return {busy, info.in_use - busy, info.capacity - info.in_use};
}

std::uint64_t BlockPool::reclaimable_slabs(SizeClass c) const {
  const std::uint64_t busy =
      pool_index(c) < tallies_.size() ? tallies_[pool_index(c)].busy_slabs : 0;
  return arena_.stats(c).slabs - busy;
}

std::uint64_t BlockPool::reclaimable_slabs_by_moving(SizeClass c) const {
  const Ledger l = ledger(c);
  const std::uint64_t capacity = arena_.slab_capacity(c);
  return arena_.stats(c).slabs - (l.referenced + l.fenced + capacity - 1) / capacity;
}

Ledger BlockPool::ledger(SizeClass c) const {
  const ArenaStats s = arena_.stats(c);
  Ledger l;
  l.free = s.extents - s.extents_in_use;
  l.total = s.extents;
  if (pool_index(c) < tallies_.size()) {
    const Tally& t = tallies_[pool_index(c)];
    l.cached = t.by_state[pool_index(BlockState::cached)];
    l.referenced = t.by_state[pool_index(BlockState::referenced)];
    l.fenced = t.by_state[pool_index(BlockState::fenced)];
  }
  return l;
}

Ledger BlockPool::ledger() const {
  Ledger sum;
  for (std::size_t c = 0; c < arena_.class_count(); ++c) {
    const Ledger l = ledger(static_cast<SizeClass>(c));
    sum.free += l.free;
    sum.cached += l.cached;
    sum.referenced += l.referenced;
    sum.fenced += l.fenced;
    sum.total += l.total;
  }
  return sum;
}

void BlockPool::count_busy(SizeClass c, ArenaOffset at, bool busy) {
  std::uint32_t& count = busy_in_slab_[static_cast<std::size_t>(arena_.slab_of(at))];
  Tally& tally = tallies_[pool_index(c)];
  if (busy) {
    if (count++ == 0) ++tally.busy_slabs;
  } else {
    if (--count == 0) --tally.busy_slabs;
  }
}

void BlockPool::change_state(std::uint32_t i, BlockState from, BlockState to) {
  Tally& tally = tallies_[blocks_[i].size_class];
  --tally.by_state[pool_index(from)];
  ++tally.by_state[pool_index(to)];
  if (is_busy(from) != is_busy(to))
    count_busy(static_cast<SizeClass>(blocks_[i].size_class), blocks_[i].offset, is_busy(to));
  if (listener_ == nullptr) return;
  if (to == BlockState::cached) listener_->block_idle(id_at(i), blocks_[i].owner);
  if (from == BlockState::cached && to != BlockState::free)
    listener_->block_busy(id_at(i), blocks_[i].owner);
}

void BlockPool::add_reader(std::uint32_t i) {
  if (blocks_[i].readers > 0) {
    if (!planted(Bug::skip_reference)) ++blocks_[i].readers;
    return;
  }
  CHECK(blocks_[i].cached);  // a corpse does not come back
  const BlockState from = state_of(blocks_[i]);
  blocks_[i].readers = 1;
  change_state(i, from, BlockState::referenced);
}

void BlockPool::let_go(Hold hold, std::uint32_t i) {
  Block& b = blocks_[i];
  const BlockState from = state_of(b);
  switch (hold) {
    case Hold::reader:
      CHECK(b.readers > 0);
      if (--b.readers > 0) return;
      break;
    case Hold::cached:
      CHECK(b.cached);
      b.cached = false;
      break;
    case Hold::fence:
      CHECK(b.fences > 0);
      --b.fences;
      break;
  }
  settle(i, from);
}

void BlockPool::settle(std::uint32_t i, BlockState from) {
  if (corpse(blocks_[i]) && steps_in_flight() > 0 && !blocks_[i].in_limbo &&
      !planted(Bug::free_skips_fence)) {
    blocks_[i].in_limbo = true;  // a step that was submitted while it was held may still read it
    limbo_ticket_[i] = submitted_;
    blocks_[i].next = kNone;
    if (limbo_tail_ == kNone)
      limbo_head_ = i;
    else
      blocks_[limbo_tail_].next = i;
    limbo_tail_ = i;
  }
  const BlockState to = state_of(blocks_[i]);
  if (to != from) change_state(i, from, to);
  if (to == BlockState::free) free_block(i);
}

void BlockPool::free_block(std::uint32_t i) {
  arena_.free(blocks_[i].offset);
  if (++blocks_[i].generation == 0)
    return;  // all generations used up: the number is never given again
  blocks_[i].next = free_head_;
  free_head_ = i;
}

Status BlockPool::check_ledger() const {
  std::vector<Tally> counted(arena_.class_count());
  std::unordered_map<std::size_t, std::uint32_t> busy;
  std::uint64_t limbo = 0;
  for (std::uint32_t i = 0; i < high_water_; ++i) {
    if (blocks_[i].generation % 2 == 0) continue;
    const BlockState state = state_of(blocks_[i]);
    const auto describe = [&](std::string_view what) {
      return Error{Code::corrupt,
                   fmt::format("block {} (owner {:#x}, {} readers, {} fences, {}cached): {}", i,
                               blocks_[i].owner, blocks_[i].readers, blocks_[i].fences,
                               blocks_[i].cached ? "" : "not ", what)};
    };
    if (state == BlockState::free) return describe("lives, though nobody holds it");
    if (arena_.tag(blocks_[i].offset) != i) return describe("its extent belongs to another block");
    if (blocks_[i].in_limbo && !corpse(blocks_[i]))
      return describe("waits for a step, though it is held");
    limbo += blocks_[i].in_limbo;
    ++counted[blocks_[i].size_class].by_state[pool_index(state)];
    if (is_busy(state) && busy[static_cast<std::size_t>(arena_.slab_of(blocks_[i].offset))]++ == 0)
      ++counted[blocks_[i].size_class].busy_slabs;
  }
  for (const auto& [slab, count] : busy)
    if (busy_in_slab_[slab] != count)
      return Error{Code::corrupt, fmt::format("slab {}: {} blocks busy, booked {}", slab, count,
                                              busy_in_slab_[slab])};
  for (std::uint32_t i = limbo_head_; i != kNone; i = blocks_[i].next) --limbo;
  if (limbo != 0) return Error{Code::corrupt, "blocks that wait for a step are not all in line"};
  for (std::size_t k = 0; k < counted.size(); ++k) {
    const SizeClass c = static_cast<SizeClass>(k);
    const std::uint64_t *now = counted[k].by_state, live = now[1] + now[2] + now[3];
    const Ledger l = ledger(c);
    if (Ledger{l.free, now[1], now[2], now[3], l.total} != l ||
        l.free + l.cached + l.referenced + l.fenced != l.total ||
        live != arena_.stats(c).extents_in_use ||
        (k < tallies_.size() && counted[k].busy_slabs != tallies_[k].busy_slabs))
      return Error{Code::corrupt,
                   fmt::format("class of {} bytes: counted cached {} referenced {} fenced {}, "
                               "booked free {} cached {} referenced {} fenced {} of {} ({} extents "
                               "in use)",
                               arena_.class_bytes(c), now[1], now[2], now[3], l.free, l.cached,
                               l.referenced, l.fenced, l.total, arena_.stats(c).extents_in_use)};
  }
  return arena_.check();
}

}  // namespace quire
