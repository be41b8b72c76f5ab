// Reserve, commit, publish: how every token enters the cache.
#include <fmt/format.h>

#include <algorithm>

#include "kv/core.h"
#include "kv/planted.h"

namespace quire {
namespace {

// Whether a step whose tokens before `end` are certain to stay fills the block, and no query needs its
// rows afterwards. Such rows are encoded and dropped before the step is over.
bool passes_by(const CacheLayout& layout, std::uint32_t g, std::uint32_t block, std::uint32_t end) {
  return layout.groups[g].open_only && (block + 1) * layout.geometry.tokens_per_block <= end;
}

// Blocks that a table of group `g` lacks for a sequence of `end` tokens, the last of them guesses.
std::uint32_t new_blocks(const CacheLayout& layout, std::uint32_t g, const BlockTable& t,
                         std::uint32_t end, std::uint32_t drafted) {
  std::uint32_t count = 0;
  for (std::uint32_t b = t.count(); b < layout.block_end(g, end); ++b)
    count += !passes_by(layout, g, b, end - drafted);
  return count;
}

}  // namespace

// Whether the sequence's next row goes into a block that others read, too: it is copied first.
bool CacheCore::writes_into_shared(const SequenceState& s, const BlockTable& t) const {
  const std::uint32_t start = s.length + s.reserved, block = start / s.tokens_per_block();
  if (planted(Bug::skip_copy_on_write)) return false;
  if (planted(Bug::write_into_cached) && block < t.count() && !t.refs[block].empty())
    return start % s.tokens_per_block() != 0 && pool.readers(t.refs[block].id()) > 1;
  // Rows that were never stored are gone. A step that follows one which was cut short cannot need
  // them: it is void anyway.
  return start % s.tokens_per_block() != 0 && block < t.count() &&
         (t.refs[block].empty() || !t.refs[block].unique());
}

// The longest length up to this one whose open block still has its rows. In a lossy layout rows are
// gone once their block is sealed, and the block's tokens must be computed again.
std::uint32_t CacheCore::keepable(const SequenceState& s, std::uint32_t length) const {
  const std::uint32_t block = length / s.tokens_per_block();
  if (length % s.tokens_per_block() == 0) return length;
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    const BlockTable& t = s.tables[g];
    if (s.layout->geometry.groups[g].kind == GroupKind::recent &&
        (block >= t.count() || t.refs[block].empty()))
      return block * s.tokens_per_block();
  }
  return length;
}

// The blocks that a step takes: `needed` by size class, `wants` by sequence.
Status CacheCore::count_needed(std::span<const StepNeed> needs) {
  std::fill(needed.begin(), needed.end(), 0);
  wants.clear();
  for (const StepNeed& need : needs) {
    SequenceState& s = *need.sequence->state_;
    CHECK(s.phase == Phase::running && need.count > need.drafted);
    const std::uint32_t end = s.length + s.reserved + need.count;
    if (end > s.options.token_capacity)
      return Error{Code::invalid, fmt::format("a sequence opened for {} tokens cannot have {}",
                                              s.options.token_capacity, end)};
    if (s.layout->state != 0 && s.steps > 0)
      return Error{Code::unsupported, "a sequence with recurrent state takes one step at a time"};
    for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
      const BlockTable& t = s.tables[g];
      const SizeClass c = s.layout->groups[g].size_class;
      const std::uint32_t count =
          s.layout->state >> g & 1
              ? 1
              : new_blocks(*s.layout, g, t, end, need.drafted) + writes_into_shared(s, t);
      needed[static_cast<std::size_t>(c)] += count;
      if (count > 0) wants.push_back({&s, c, count});
    }
  }
  return {};
}

Result<std::uint32_t> CacheCore::reserve(std::span<const StepNeed> needs) {
  const auto free_step =
      std::find_if(steps.begin(), steps.end(), [](const Step& s) { return !s.live; });
  if (free_step == steps.end())
    return Error{Code::exhausted,
                 fmt::format("{} steps are in flight; end one first", steps.size())};
  if (needs.size() > options.step_items_max)
    return Error{Code::invalid, fmt::format("a step takes at most {} sequences, this one has {}",
                                            options.step_items_max, needs.size())};
  TRY_STATUS(count_needed(needs));
  if (arena.over_budget_bytes() > 0) resize(arena.budget_bytes());
  if (!feasible(needed)) return no_room();
  taken.clear();
  for (std::size_t c = 0; c < needed.size(); ++c) {
    if (needed[c] == 0) continue;
    for (const Want& want : wants) {
      for (std::uint32_t i = 0; want.size_class == SizeClass(c) && i < want.blocks; ++i) {
        taken.push_back(take(want.size_class, *want.sequence));
        if (!taken.back().empty()) continue;
        if (!planted(Bug::leak_on_failed_reserve)) taken.clear();
        return no_room();
      }
    }
  }
  shares_waived = false;

  // From here on nothing fails. Blocks were taken class by class; `next` walks each class's part.
  std::size_t start = 0;
  for (std::uint32_t& c : needed) start += std::exchange(c, static_cast<std::uint32_t>(start));
  const auto next = [&](SizeClass c) -> BlockRef& {
    return taken[needed[static_cast<std::size_t>(c)]++];
  };
  Step& step = *free_step;
  step.items.clear();
  for (const StepNeed& need : needs) {
    SequenceState& s = *need.sequence->state_;
    refresh_offsets(s);
    const std::uint32_t base = s.length + s.reserved;
    for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
      BlockTable& t = s.tables[g];
      const SizeClass c = s.layout->groups[g].size_class;
      if (s.layout->state >> g & 1) {
        BlockRef& fresh = next(c);
        if (t.count() == 0) {
          arena.memory().fill(static_cast<std::size_t>(fresh.offset()) * kArenaUnit,
                              pool.bytes(fresh.id()), std::byte{0});
          t.push(std::move(fresh));
        } else {
          pool.copy(fresh.id(), t.refs[0].id());
          t.saved = std::move(t.refs[0]);
          t.replace(0, std::move(fresh));
        }
        continue;
      }
      if (writes_into_shared(s, t)) {
        BlockRef& copy = next(c);
        const std::uint32_t block = base / s.tokens_per_block();
        if (!t.refs[block].empty()) {
          pool.copy(copy.id(), t.refs[block].id());
          ++counters.blocks_copied;
          journal.add({.time = tick(),
                       .request = s.options.request,
                       .bytes = pool.bytes(copy.id()),
                       .block = block,
                       .tokens = base % s.tokens_per_block(),
                       .group = static_cast<std::uint16_t>(g),
                       .reason = Reason::copied_on_write});
        }
        t.replace(block, std::move(copy));
      }
      const std::uint32_t end = base + need.count, blocks = s.layout->block_end(g, end);
      while (t.count() < blocks)
        t.push(passes_by(*s.layout, g, t.count(), end - need.drafted) ? BlockRef{}
                                                                      : std::move(next(c)));
    }
    s.reserved += need.count;
    ++s.steps;
    step.items.push_back({&s, s.options.root, s.serial, base, need.count, false});
  }
  taken.clear();
  step.ticket = pool.submit_step();
  step.completed = false;
  step.live = true;
  return static_cast<std::uint32_t>(free_step - steps.begin());
}

Error CacheCore::no_room() const {
  std::string text = "the KV cache has no room for this step: it needs";
  for (std::size_t c = 0; c < needed.size(); ++c)
    if (needed[c] > 0)
      text += fmt::format(" {} blocks of {} bytes", needed[c], arena.class_bytes(SizeClass(c)));
  const Ledger l = pool.ledger();
  text += fmt::format(
      "; {} blocks are in use, {} bytes pinned, the budget is {} bytes; preempt a sequence or "
      "raise it",
      l.referenced + l.fenced, store.stats().pinned_bytes, arena.budget_bytes());
  return {Code::exhausted, std::move(text)};
}

void CacheCore::refresh_offsets(SequenceState& s) {
  if (s.moves_seen == store.moves() || planted(Bug::stale_offsets)) return;
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    BlockTable& t = s.tables[g];
    for (std::uint32_t i = s.layout->groups[g].sinks > 0 ? 0 : t.first; i < t.count(); ++i)
      if (!t.refs[i].empty()) t.offsets[i] = t.refs[i].offset();
    for (LaneRun& lane : t.lanes)
      for (std::size_t i = 0; i < lane.pages.size(); ++i) lane.offsets[i] = lane.pages[i].offset();
  }
  s.moves_seen = store.moves();
}

// The step is over: blocks that were released while it ran can be used again.
void CacheCore::complete(Step& step) {
  if (!std::exchange(step.completed, true)) pool.complete_step(step.ticket);
}

void CacheCore::end_step(std::uint32_t number) {
  Step& step = steps[number];
  tick();
  complete(step);
  for (Item& item : step.items)
    if (!item.done) finish_item(item, 0);
  step.live = false;
}

std::uint32_t CacheCore::commit(std::uint32_t number, std::size_t which,
                                std::span<const TokenId> accepted) {
  Step& step = steps[number];
  Item& item = step.items[which];
  SequenceState& s = *item.sequence;
  CHECK(step.live && !item.done && accepted.size() <= item.count);
  tick();
  complete(step);
  if (item.serial == s.serial) {
    CHECK(accepted.empty() || s.length == item.base);
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      if (item.base + i < s.tokens.size())
        CHECK(s.tokens[item.base + i] == accepted[i]);
      else
        s.tokens.push_back(accepted[i]);
    }
  }
  finish_item(item, static_cast<std::uint32_t>(accepted.size()));
  return item.serial == s.serial ? s.length : 0;
}

void CacheCore::finish_item(Item& item, std::uint32_t accepted) {
  item.done = true;
  SequenceState& s = *item.sequence;
  if (item.serial != s.serial) return;  // closed meanwhile
  s.reserved -= item.count;
  --s.steps;
  if (s.layout->state != 0) {
    // A state holds all tokens of the step or none of them.
    if (accepted < item.count && !planted(Bug::state_not_restored)) accepted = 0;
    for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
      BlockTable& t = s.tables[g];
      if (!(s.layout->state >> g & 1)) continue;
      if (accepted == 0) {
        if (t.saved.empty())
          t.cut(0);
        else
          t.replace(0, std::move(t.saved));
      }
      t.saved = {};
    }
  }
  if (planted(Bug::publish_rejected) && accepted > 0) accepted = item.count;
  if (accepted > 0) s.length = keepable(s, item.base + accepted);
  s.computed = std::max(s.computed, s.length);
  if (s.steps == 0)
    for (std::uint32_t g = 0; g < s.layout->group_count; ++g)
      if (!(s.layout->state >> g & 1)) s.tables[g].cut(s.layout->block_end(g, s.length));
  publish(s);
  leave_window(s);
}

void CacheCore::leave_window(SequenceState& s) {
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    if (!(s.layout->windowed >> g & 1)) continue;
    BlockTable& t = s.tables[g];
    const std::uint32_t first = std::min(s.layout->first_block(g, s.length), t.count());
    const std::uint32_t end =
        planted(Bug::window_too_short) ? std::min(first + 1, t.count()) : first;
    for (; t.first < end; ++t.first)
      if (t.first >= s.layout->groups[g].sinks) t.refs[t.first] = {};
  }
}

void CacheCore::publish(SequenceState& s, std::uint32_t below_until) {
  if (!s.options.publish || (s.faulted && !planted(Bug::publish_faulted))) return;
  if (s.options.inline_keys) compute_keys(s);
  std::uint32_t limit = std::min(
      {s.length, s.pure_until, s.options.publish_generated ? UINT32_MAX : s.prompt_length});
  if (planted(Bug::publish_early)) ++limit;
  if (planted(Bug::publish_impure) || planted(Bug::publish_faulted)) limit = s.length;
  while ((s.published + 1) * s.tokens_per_block() <= limit && s.published < s.keys.size())
    if (!publish_block(s, s.published, s.published < below_until)) return;
}

// Makes room in a quota for the bytes that are missing. What leaves for that may be missing then too.
template <class F>
bool CacheCore::fits_quota(TenantSlot t, F missing) {
  for (std::uint64_t more = missing();;) {
    if (!store.keep_quota(t, more)) return false;
    const std::uint64_t now = missing();
    if (now <= more) return true;
    more = now;
  }
}

bool CacheCore::publish_block(SequenceState& s, std::uint32_t i, bool from_below) {
  std::vector<NodeId>& path = s.cursor.path;
  const auto missing = [&] {
    std::uint64_t bytes = 0;
    for (std::uint32_t g = 0; g < s.layout->group_count; ++g)
      if (!(s.layout->state >> g & 1) && !(i < path.size() && store.has(path[i], g)))
        bytes += s.layout->groups[g].bytes;
    return bytes;
  };
  if (!fits_quota(store.tenant(s.cursor.root), missing)) {
    set_path(s, s.published);  // nobody waits for it
    return false;
  }
  if (i < path.size()) {
    store.end_computing(path[i]);
  } else {
    const NodeId above = i == 0 ? s.cursor.root : path[i - 1];
    const NodeId made =
        store.need(above, s.keys[i], s.chain().change_at(i), &s.tokens[i * s.tokens_per_block()]);
    if (made == kNoNode) return false;
    store.anchor(made);
    if (i > 0) store.unanchor(above);
    path.push_back(made);
  }
  const NodeId n = path[i];
  ++s.published;
  bool stored = false;
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    BlockTable& t = s.tables[g];
    if (s.layout->state >> g & 1 || s.layout->groups[g].open_only || t.refs[i].empty()) continue;
    if (!store.has(n, g)) {
      store.put(n, g, t.refs[i].id());
      stored = true;
      ++counters.blocks_published;
      if (from_below || !s.options.goes_below)  // the latter: it is never offered
        store.set_below(n, g);
      else
        store.offer(n, g, Offer::sealed);
    } else if (store.block_id(n, g) != t.refs[i].id()) {
      // The same bytes were computed twice: one copy stays. A step in flight may still read the
      // other, so the pool fences it.
      t.replace(i, store.hold(n, g));
      ++counters.blocks_deduplicated;
    }
  }
  if (stored) counters.tokens_published += s.tokens_per_block();
  const Nanoseconds now = tick();
  store.touch(n, s.options.priority, s.options.ttl ? now + s.options.ttl : 0, false);
  store.became_ready(n);
  journal.add({.time = now,
               .request = s.options.request,
               .key = s.keys[i].prefix(),
               .bytes = store.bytes(n),
               .extra = static_cast<std::uint64_t>(n) << 32 | store.index().present(n),
               .block = i,
               .tokens = s.tokens_per_block(),
               .reason = stored ? Reason::stored : Reason::stored_duplicate});
  return true;
}

void CacheCore::snapshot(SequenceState& s) {
  CHECK(s.phase == Phase::running && s.steps == 0);
  if (s.layout->state == 0 || s.length == 0 || s.published * s.tokens_per_block() != s.length)
    return;
  const NodeId n = s.cursor.path[s.published - 1];
  if (!store.ready(n)) return;  // evicted under a compacted sequence
  const auto missing = [&] {
    std::uint64_t bytes = 0;
    for (std::uint32_t g = 0; g < s.layout->group_count; ++g)
      if (s.layout->state >> g & 1 && !store.has(n, g)) bytes += s.layout->groups[g].bytes;
    return bytes;
  };
  if (!fits_quota(store.tenant(n), missing) || !store.ready(n)) return;
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g)
    if (s.layout->state >> g & 1 && !store.has(n, g)) store.put(n, g, s.tables[g].refs[0].id());
  store.became_ready(n);
  journal.add({.time = tick(),
               .request = s.options.request,
               .key = store.index().key(n).prefix(),
               .bytes = store.bytes(n),
               .extra = static_cast<std::uint64_t>(n) << 32 | store.index().present(n),
               .block = s.published - 1,
               .tokens = s.tokens_per_block(),
               .reason = Reason::stored});
}

}  // namespace quire
