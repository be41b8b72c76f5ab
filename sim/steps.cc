// Steps: reserved, computed by the toy device when they end, committed in whole or in part.
#include <algorithm>

#include "sim/world.h"

namespace quire {

// Everything a step starting at `past` may look at.
void Simulator::check_reads(const Live& l, std::uint32_t past) {
  const Tree& tree = trees_[l.root];
  for (std::uint32_t g = 0; g < tree.geometry.groups.size(); ++g) {
    const LayerGroup& group = tree.geometry.groups[g];
    if (group.kind == GroupKind::state) {
      if (past > 0 && l.in_steps == 0)
        CHECK(toy_state_matches(cache_->arena(), l.sequence.table(g)[0], l.rows, past));
      continue;
    }
    const std::uint32_t ragged = cache_->ragged_until(l.sequence, g);
    const std::uint32_t from =
        std::max(ragged, group.window && past + 1 > group.window ? past + 1 - group.window : 0);
    CHECK(toy_matches(cache_->arena(), tree.geometry, g, l.sequence.table(g), l.rows, from, past));
    report_.rows_checked += past - from;
    for (std::uint32_t lane = 0; lane < group.lanes() && ragged > 0; ++lane) {
      const LaneView kept = cache_->lane(l.sequence, g, lane);
      for (std::uint32_t i = 0; i < kept.slots; ++i) {
        const std::uint32_t t = kept.positions[i];
        const std::byte* page = arena_at(cache_->arena(), kept.pages[i / kBlock]);
        float key;
        std::memcpy(&key, page + i % kBlock * sizeof key, sizeof key);
        CHECK(t < ragged && key == toy_value(l.rows.at(t), t, lane + g * 1000, 0));
      }
    }
  }
}

void Simulator::start_step(bool faults) {
  PendingStep step;
  std::vector<StepNeed> needs;
  for (const auto& p : live_) {
    Live& l = *p;
    const bool stateful =
        std::ranges::any_of(trees_[l.root].geometry.groups,
                            [](const LayerGroup& g) { return g.kind == GroupKind::state; });
    if (l.placed || l.in_steps >= (stateful ? 1u : 2u) || needs.size() == 4 || !random_.chance(0.7))
      continue;
    // A second step follows the first only if that one is sure to be accepted as planned.
    std::uint32_t past = l.sequence.length() + l.sequence.reserved();
    bool dead = false;
    for (const PendingStep& s : pending_)
      for (const PendingItem& i : s.items) dead = dead || (i.id == l.id && i.accept < i.count);
    if (past >= l.target) continue;
    const std::uint32_t left = l.target - past;
    const std::uint32_t count = 1 + static_cast<std::uint32_t>(random_.below(std::min(left, 9u)));
    std::uint32_t accept = count;
    if (past + count > l.prompt && faults && random_.chance(0.4))
      accept = static_cast<std::uint32_t>(random_.below(count + 1));
    if (dead) accept = 0;
    needs.push_back({&l.sequence, count});
    step.items.push_back({l.id, l.root, past, count, accept, dead, {}, {}, History{}});
  }
  if (needs.empty()) return;
  if (pending_.empty())
    for (const PendingItem& i : step.items) check_reads(*find(i.id), i.past);
  const CacheStats before = cache_->stats();
  const std::vector<TenantInfo> had = holdings();
  Result<Reservation> room = cache_->reserve(needs);
  // A cache that has just shrunk takes from everybody.
  if (!waived_ && before.slab_bytes <= before.budget_bytes) check_shares(had, step.items);
  waived_ = waived_ && !room.ok();
  if (!room.ok()) {
    CHECK(room.error().code == Code::exhausted);
    CHECK(cache_->stats().referenced_blocks <= before.referenced_blocks);
    ++report_.refused_steps;
    relieve(faults);
    return;
  }
  step.room.emplace(std::move(room.value()));
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    PendingItem& item = step.items[i];
    Live& l = *find(item.id);
    const Tree& tree = trees_[l.root];
    CHECK(step.room->past(i) == item.past && step.room->count(i) == item.count);
    if (item.past == l.sequence.length()) check_reads(l, item.past);  // after copies and moves
    ++l.in_steps;
    item.rows = l.rows;
    for (std::uint32_t g = 0; g < tree.geometry.groups.size(); ++g) {
      const ArenaOffset* blocks = step.room->view(i, g, 0).blocks;
      const bool state = tree.geometry.groups[g].kind == GroupKind::state;
      item.ragged.push_back(cache_->ragged_until(l.sequence, g));
      item.tables.emplace_back(
          blocks, blocks + (state ? 1 : (item.past + item.count + kBlock - 1) / kBlock));
    }
  }
  pending_.push_back(std::move(step));
}

void Simulator::work(const PendingItem& item) {
  const Geometry& geometry = trees_[item.root].geometry;
  // Rows of rejected tokens are written too, and must never be seen again.
  History written = item.rows;
  for (std::uint32_t t = item.past + item.accept; t < item.past + item.count; ++t)
    written.set(t, mix64(t + item.id));
  for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
    const LayerGroup& group = geometry.groups[g];
    const ArenaOffset* blocks = item.tables[g].data();
    if (group.kind == GroupKind::state) {
      CHECK(toy_state_matches(cache_->arena(), blocks[0], item.rows, item.past));
      toy_write_state(cache_->arena(), blocks[0], written, item.past + item.count);
      continue;
    }
    const std::uint32_t from =
        std::max(item.ragged[g],
                 group.window && item.past + 1 > group.window ? item.past + 1 - group.window : 0);
    if (!item.follows_rejected)
      CHECK(toy_matches(cache_->arena(), geometry, g, blocks, item.rows, from, item.past));
    toy_write(cache_->arena(), geometry, g, {blocks, 0, item.count, item.past}, written, item.past,
              item.past + item.count);
  }
}

void Simulator::finish_step() {
  if (pending_.empty()) return;
  PendingStep step = std::move(pending_.front());
  pending_.pop_front();
  const bool failed = random_.chance(0.03);
  for (const PendingItem& item : step.items) work(item);
  const std::vector<TenantInfo> had = holdings();
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const PendingItem& item = step.items[i];
    Live* l = find(item.id);
    if (!l) {  // cancelled while the step ran
      if (item.accept < item.count || failed)
        for (PendingStep& s : pending_)
          for (PendingItem& later : s.items)
            later.follows_rejected = later.follows_rejected || later.id == item.id;
      continue;
    }
    --l->in_steps;
    const bool follows = l->sequence.length() == item.past;
    const std::uint32_t accept = failed || !follows ? 0 : item.accept;
    if (accept < item.count)  // what was to come after it is void
      for (PendingStep& s : pending_)
        for (PendingItem& later : s.items)
          if (later.id == item.id) {
            later.accept = 0;
            later.follows_rejected = true;
          }
    if (accept == 0 && random_.chance(0.5)) continue;
    const std::uint32_t before = l->sequence.length();
    const std::uint32_t length =
        step.room->commit(i, std::span(l->script).subspan(item.past, accept));
    CHECK(length == l->sequence.length() && length >= before && length <= before + accept);
    report_.appended_tokens += length - before;
  }
  step.room.reset();
  check_shares(had, step.items);
  for (const PendingItem& item : step.items) {
    Live* l = find(item.id);
    if (!l) continue;
    l->computed = std::max(l->computed, l->sequence.length());
    give_keys(*l);
    if (l->in_steps > 0) continue;
    check_reads(*l, l->sequence.length());
    if (random_.chance(0.3)) {
      cache_->snapshot(l->sequence);
      ++report_.snapshots;
    }
    if (l->sequence.length() >= l->target) {
      ++report_.finished;
      close(*l);
    }
  }
}

}  // namespace quire
