// Looks prompts up in the index: placing, attaching, preempting, forking and truncating sequences.
#include <algorithm>

#include "kv/core.h"
#include "kv/planted.h"

namespace quire {

void CacheCore::compute_keys(SequenceState& s) {
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  for (std::size_t i = s.keys.size(); (i + 1) * tokens_per_block <= s.tokens.size(); ++i) {
    const auto first = static_cast<std::uint32_t>(i * tokens_per_block);
    const auto from = std::partition_point(s.changes.begin(), s.changes.end(),
                                           [&](const KeyChange& c) { return c.position < first; });
    const auto to = std::partition_point(from, s.changes.end(), [&](const KeyChange& c) {
      return c.position < first + tokens_per_block;
    });
    s.keys.push_back(block_key(options.secret, i == 0 ? s.root_key : s.keys[i - 1],
                               std::span(s.tokens).subspan(first, tokens_per_block), first,
                               {from, to}));
  }
}

void CacheCore::supply_keys(SequenceState& s, std::span<const BlockKey> keys) {
  s.keys.insert(s.keys.end(), keys.begin(), keys.end());
  if (s.phase == Phase::placed && s.options.reuse) {
    s.cursor.chain = s.chain();
    store.follow(s.cursor);
  }
  if (s.phase == Phase::running) publish(s);
}

void CacheCore::place(SequenceState& s, std::span<const TokenId> prompt,
                      std::span<const BlockKey> keys) {
  CHECK(s.phase == Phase::fresh && prompt.size() <= s.options.token_capacity);
  CHECK(keys.size() * s.tokens_per_block() <= prompt.size());
  s.tokens.assign(prompt.begin(), prompt.end());
  s.keys.assign(keys.begin(), keys.end());
  s.prompt_length = static_cast<std::uint32_t>(prompt.size());
  if (s.options.inline_keys) compute_keys(s);
  s.phase = Phase::placed;
  s.cursor.chain = s.options.reuse ? s.chain() : TokenChain{};
  store.place(s.cursor);
}

// The longest length, at most `limit`, that every group can serve from the cursor's path.
CacheCore::Match CacheCore::servable(const Cursor& cursor, const CacheLayout& layout,
                                     std::uint32_t limit) const {
  const std::uint32_t tokens_per_block = layout.geometry.tokens_per_block;
  const PrefixIndex& index = store.index();
  const auto path_length = static_cast<std::uint32_t>(cursor.path.size());
  Match m;
  m.blocks = std::min(path_length, limit / tokens_per_block);
  const NodeId last = m.blocks == 0 ? cursor.root : cursor.path[m.blocks - 1];
  if (layout.state == 0 && layout.exact && !cursor.chain.tokens.empty()) {
    const std::uint32_t from = m.blocks * tokens_per_block;
    if (path_length > m.blocks) {
      m.partial_node = cursor.path[m.blocks];
      m.partial = limit - from;
    } else {
      const std::size_t to =
          std::min<std::size_t>({limit, from + tokens_per_block, cursor.chain.tokens.size()});
      const PartialMatch p = index.longest_child(last, cursor.chain.change_at(m.blocks),
                                                 cursor.chain.tokens.subspan(from, to - from));
      if (p.tokens > 0 && store.ready(p.node)) {
        m.partial_node = p.node;
        m.partial = p.tokens;
        if (planted(Bug::partial_one_too_many) && from + m.partial < to) ++m.partial;
      }
    }
    if (m.partial == 0) m.partial_node = kNoNode;
  }

  // Finds the last block that a group lacks for this length; lengths that need it are impossible.
  const auto lacking = [&]() -> std::int64_t {
    const std::uint32_t length = m.blocks * tokens_per_block + m.partial;
    const std::uint32_t end = m.blocks + (m.partial > 0);
    std::int64_t worst = -1;
    for (std::uint32_t g = 0; g < layout.group_count && length > 0; ++g) {
      if (layout.state >> g & 1 && !store.has(cursor.path[m.blocks - 1], g)) return m.blocks - 1;
      if (!(layout.windowed >> g & 1) || planted(Bug::forget_group)) continue;
      const std::uint32_t first = layout.first_block(g, length);
      const std::uint32_t sinks = layout.groups[g].sinks;
      for (std::uint32_t b = end; b-- > (sinks > 0 ? 0 : first);) {
        if (b < first) b = std::min(b, sinks - 1);
        if (store.has(b < m.blocks ? cursor.path[b] : m.partial_node, g)) continue;
        worst = std::max<std::int64_t>(worst, b);
        break;
      }
    }
    return worst;
  };
  for (std::int64_t b; (b = lacking()) >= 0;) {
    m.window_dropped = m.window_dropped || b < m.blocks;
    m.partial = 0;
    m.partial_node = kNoNode;
    m.blocks = std::min(m.blocks, static_cast<std::uint32_t>(b));
  }

  if (!m.window_dropped) {
    NodeId n = cursor.node();
    std::uint32_t i = path_length;
    for (; i < cursor.chain.keys.size(); ++i) {
      n = index.find(n, cursor.chain.keys[i], cursor.chain.change_at(i),
                     &cursor.chain.tokens[i * tokens_per_block]);
      if (n == kNoNode || store.node(n).computing == 0) break;
    }
    const std::uint32_t served = m.blocks * tokens_per_block + m.partial;
    const std::uint32_t reach = std::min(i * tokens_per_block, limit);
    if (i > path_length && reach > served) m.in_flight = reach - served;
  }
  return m;
}

Reason CacheCore::why_missed(const Cursor& cursor, const Match& m, std::uint32_t limit) const {
  const std::uint32_t tokens_per_block = options.tokens_per_block;
  const std::uint32_t served = m.blocks * tokens_per_block + m.partial;
  if (served >= limit) return Reason::none;
  if (cursor.chain.tokens.empty()) return Reason::reuse_disabled;
  if (m.window_dropped) return Reason::window_dropped;
  if (m.in_flight > 0) return Reason::in_flight;
  if (m.blocks >= cursor.chain.keys.size()) return Reason::block_partial;
  if (const std::optional<Ghost> g = store.ghosts().find(cursor.chain.keys[m.blocks].prefix())) {
    if (g->reason == Reason::evicted_expired) return Reason::expired;
    if (g->reason == Reason::evicted_cleared) return Reason::cleared;
    return Reason::evicted;
  }
  const NodeId last = m.blocks == 0 ? cursor.root : cursor.path[m.blocks - 1];
  return store.index().children(last) > 0 ? Reason::tokens_diverged : Reason::never_seen;
}

Attached CacheCore::peek(const SequenceState& s) const {
  if (s.phase == Phase::parked) return {.tokens = s.length};
  CHECK(s.phase == Phase::placed);
  const Match m = servable(s.cursor, *s.layout, s.serve_limit());
  return {.tokens = m.blocks * s.tokens_per_block() + m.partial,
          .partial = m.partial,
          .in_flight = m.in_flight,
          .reason = why_missed(s.cursor, m, s.serve_limit())};
}

Attached CacheCore::attach(SequenceState& s) {
  if (s.phase == Phase::parked) {
    unpark(s);
    announce(s);
    journal.add({.time = tick(),
                 .request = s.options.request,
                 .tokens = s.length,
                 .reason = Reason::resumed});
    return {.tokens = s.length};
  }
  CHECK(s.phase == Phase::placed);
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  const Match m = servable(s.cursor, *s.layout, s.serve_limit());
  const Attached got = {.tokens = m.blocks * tokens_per_block + m.partial,
                        .partial = m.partial,
                        .in_flight = m.in_flight,
                        .reason = why_missed(s.cursor, m, s.serve_limit())};
  const Nanoseconds now = tick();
  const Nanoseconds lease_until = s.options.ttl ? now + s.options.ttl : 0;
  store.remove(s.cursor);
  std::vector<NodeId>& path = s.cursor.path;
  path.resize(m.blocks);
  s.length = got.tokens;
  s.published = m.blocks;
  s.phase = Phase::running;
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    BlockTable& t = s.tables[g];
    CHECK(t.count() == 0);
    if (s.layout->state >> g & 1) {
      if (m.blocks > 0) t.push(store.hold(path[m.blocks - 1], g));
      continue;
    }
    if (s.layout->windowed >> g & 1)
      t.first = std::min(s.layout->first_block(g, s.length), m.blocks);
    for (std::uint32_t b = 0; b < m.blocks; ++b) {
      if (b >= t.first || b < s.layout->groups[g].sinks)
        t.push(store.hold(path[b], g));
      else
        t.push({});
    }
    if (m.partial > 0) t.push(store.hold(m.partial_node, g));
  }
  s.moves_seen = store.moves();
  for (const NodeId n : path) store.touch(n, s.options.priority, lease_until, true);
  if (m.partial > 0) store.touch(m.partial_node, s.options.priority, 0, true);
  if (!path.empty()) store.anchor(path.back());

  ++counters.requests;
  counters.tokens_queried += s.tokens.size();
  counters.tokens_hit += got.tokens;
  counters.tokens_partial += got.partial;
  counters.tokens_in_flight += got.in_flight;
  // What a larger cache would have served beyond this: the next whole blocks that were cached once,
  // without a gap.
  for (std::size_t i = m.blocks; i < s.cursor.chain.keys.size(); ++i)
    if (!store.ghosts().miss(s.cursor.chain.keys[i].prefix(), tokens_per_block,
                             arena.budget_bytes()))
      break;
  journal.add({.time = now,
               .request = s.options.request,
               .key = path.empty() ? 0 : store.index().key(path.back()).prefix(),
               .extra = s.tokens.size(),
               .tokens = got.tokens,
               .reason = got.partial > 0  ? Reason::hit_partial
                         : got.tokens > 0 ? Reason::hit
                                          : got.reason});
  announce(s);
  return got;
}

// Tells the index which blocks this sequence is going to compute, so that others can wait for them.
void CacheCore::announce(SequenceState& s) {
  if (!s.options.publish || s.faulted) return;
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  const std::uint32_t limit = std::min(s.prompt_length, s.pure_until);
  std::vector<NodeId>& path = s.cursor.path;
  for (std::size_t i = path.size(); (i + 1) * tokens_per_block <= limit && i < s.keys.size(); ++i) {
    const NodeId above = path.empty() ? s.cursor.root : path.back();
    const NodeId n =
        store.need(above, s.keys[i], s.chain().change_at(static_cast<std::uint32_t>(i)),
                   &s.tokens[i * tokens_per_block]);
    if (n == kNoNode) return;
    store.anchor(n);
    if (!path.empty()) store.unanchor(above);
    store.begin_computing(n);
    path.push_back(n);
  }
}

void CacheCore::set_path(SequenceState& s, std::uint32_t blocks) {
  std::vector<NodeId>& path = s.cursor.path;
  if (path.size() <= blocks) return;
  const NodeId old = path.back();
  for (std::size_t i = path.size(); i-- > blocks;)
    if (i >= s.published) store.end_computing(path[i]);
  path.resize(blocks);
  s.published = std::min(s.published, blocks);
  if (!path.empty()) store.anchor(path.back());
  store.unanchor(old);
}

void CacheCore::release_blocks(SequenceState& s) {
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    BlockTable& t = s.tables[g];
    // No sequence reads what a failed step left behind, but a step in flight may still read it.
    if (s.faulted && pool.steps_in_flight() == 0)
      for (const BlockRef& r : t.refs)
        if (!r.empty() && r.unique())
          arena.memory().fill(static_cast<std::size_t>(r.offset()) * kArenaUnit, pool.bytes(r.id()),
                              kPoison);
    t.cut(0);
    t.set_lanes({});
    t.saved = {};
  }
  s.length = 0;
}

void CacheCore::preempt(SequenceState& s, Preempt how) {
  CHECK(s.steps == 0 && (s.phase == Phase::running || s.phase == Phase::parked));
  const Nanoseconds now = tick();
  journal.add(
      {.time = now,
       .request = s.options.request,
       .tokens = s.length,
       .reason = how == Preempt::park ? Reason::preempted_parked : Reason::preempted_recompute});
  set_path(s, s.published);
  if (how == Preempt::park && s.length > 0) {
    if (s.phase == Phase::running) park(s);
    return;
  }
  if (s.phase == Phase::parked) unpark(s);
  release_blocks(s);
  // A compacted sequence does not hold all blocks it published: the end of its path may have been
  // evicted.
  std::uint32_t usable = s.options.reuse ? s.published : 0;
  while (usable > 0 && !store.ready(s.cursor.path[usable - 1])) --usable;
  set_path(s, usable);
  const NodeId anchored = s.cursor.path.empty() ? kNoNode : s.cursor.path.back();
  s.published = 0;
  s.phase = Phase::placed;
  s.cursor.chain = s.options.reuse ? s.chain() : TokenChain{};
  store.put_at(s.cursor);
  if (anchored != kNoNode) store.unanchor(anchored);
  store.follow(s.cursor);
}

Result<SequenceState*> CacheCore::fork(const SequenceState& s, std::uint32_t token_capacity) {
  CHECK(s.steps == 0 && (s.phase == Phase::running || s.phase == Phase::parked));
  SequenceOptions o = s.options;
  o.changes = s.changes;
  if (token_capacity > 0) o.token_capacity = std::max(token_capacity, s.length);
  TRY(SequenceState * made, open(o));
  SequenceState& f = *made;
  f.tokens.assign(s.tokens.begin(), s.tokens.end());
  f.keys.assign(s.keys.begin(), s.keys.end());
  f.length = s.length;
  f.computed = s.computed;
  f.prompt_length = s.prompt_length;
  f.pure_until = s.pure_until;
  f.faulted = s.faulted;
  f.published = s.published;
  f.cursor.path.assign(s.cursor.path.begin(), s.cursor.path.begin() + s.published);
  if (!f.cursor.path.empty()) store.anchor(f.cursor.path.back());
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    const BlockTable& from = s.tables[g];
    for (const BlockRef& r : from.refs) f.tables[g].push(r.empty() ? BlockRef{} : r.share());
    f.tables[g].first = from.first;
    std::vector<LaneRun> lanes;
    for (const LaneRun& lane : from.lanes) {
      LaneRun& copy = lanes.emplace_back();
      for (const BlockRef& page : lane.pages) {
        copy.offsets.push_back(page.offset());
        copy.pages.push_back(page.share());
      }
      copy.positions = lane.positions;
    }
    f.tables[g].set_lanes(std::move(lanes));
  }
  f.moves_seen = store.moves();
  f.phase = Phase::running;
  announce(f);
  journal.add(
      {.time = tick(), .request = s.options.request, .tokens = s.length, .reason = Reason::forked});
  return made;
}

std::uint32_t CacheCore::truncate(SequenceState& s, std::uint32_t length) {
  CHECK(s.steps == 0 && length > 0);
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  if (s.phase == Phase::parked) unpark(s);
  if (s.phase == Phase::running) set_path(s, std::min(s.published, length / tokens_per_block));
  const auto forget = [&] {
    if (length >= s.tokens.size()) return;
    s.tokens.resize(length);
    s.keys.resize(std::min<std::size_t>(s.keys.size(), length / tokens_per_block));
    s.prompt_length = std::min(s.prompt_length, length);
    s.computed = std::min(s.computed, length);
  };
  if (s.phase == Phase::placed) {
    store.remove(s.cursor);
    forget();
    s.cursor.path.clear();
    s.cursor.chain = s.options.reuse ? s.chain() : TokenChain{};
    store.place(s.cursor);
    return 0;
  }
  CHECK(s.phase == Phase::running);
  journal.add({.time = tick(),
               .request = s.options.request,
               .tokens = length,
               .reason = Reason::rolled_back});
  if (length >= s.length) {
    forget();
    announce(s);
    return s.length;
  }

  // Truncates in place if every window can still look back far enough. Where the rows of a sealed
  // block are gone, the sequence goes back to the start of that block.
  std::uint32_t kept = length;
  if (!look_back(s, kept) &&
      (s.layout->exact || !look_back(s, kept = length / tokens_per_block * tokens_per_block))) {
    forget();
    preempt(s, Preempt::recompute);
    attach(s);
    return s.length;
  }
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    BlockTable& t = s.tables[g];
    t.cut(s.layout->block_end(g, kept));
    while (t.first > 0 && !t.refs[t.first - 1].empty()) --t.first;
  }
  s.length = kept;
  forget();
  announce(s);
  return s.length;
}

// Whether the sequence, cut to `length`, has all that its next token needs. Blocks that its windows
// let go may still be cached.
bool CacheCore::look_back(SequenceState& s, std::uint32_t length) {
  if (s.layout->state != 0) return false;
  for (const BlockTable& t : s.tables)  // what a compaction dropped does not come back
    if (!t.lanes.empty() && length < t.first * s.tokens_per_block()) return false;
  for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
    if (!(s.layout->windowed >> g & 1)) continue;
    BlockTable& t = s.tables[g];
    for (std::uint32_t b = s.layout->first_block(g, length); b < s.layout->block_end(g, length);
         ++b) {
      if (!t.refs[b].empty()) continue;
      if (b >= s.cursor.path.size() || !store.has(s.cursor.path[b], g)) return false;
      t.replace(b, store.hold(s.cursor.path[b], g));
    }
  }
  return true;
}

}  // namespace quire
