// Looking at the cache, clearing it, and checking that its books balance.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "kv/core.h"

namespace quire {

NodeInfo CacheCore::node_info(NodeId n) const {
  const PrefixIndex& index = store.index();
  const CacheNode& node = store.node(n);
  const NodeId above = index.parent(n);
  std::uint32_t readers = 0;
  for (std::uint32_t g = 0; g < kGroupsMax; ++g)
    if (store.has(n, g)) readers = std::max(readers, pool.readers(store.block_id(n, g)));
  return {.key = index.key(n),
          .parent = index.is_root(above) ? BlockKey{} : index.key(above),
          .root = id_of(node.root),
          .tenant = roots[node.root].identity.tenant,
          .depth_tokens = index.depth(n) * options.tokens_per_block,
          .tokens = index.tokens(n),
          .children = index.children(n),
          .hits = node.hits,
          .sequences = readers,
          .bytes = store.bytes(n),
          .created = node.created,
          .last_used = node.last_used,
          .lease_until = node.lease_until,
          .priority = node.priority,
          .pinned = node.pins > 0,
          .in_flight = node.computing > 0 && index.present(n) == 0,
          .below = index.present(n) != 0 && node.below == index.present(n),
          .ready = store.ready(n)};
}

std::uint64_t KvCache::bytes(const Sequence& s) const {
  std::uint64_t sum = 0;
  const auto add = [&](const std::vector<BlockRef>& refs) {
    for (const BlockRef& r : refs)
      if (!r.empty()) sum += core_->pool.bytes(r.id());
  };
  for (std::uint32_t g = 0; g < s.state_->layout->group_count; ++g) {
    const BlockTable& t = s.state_->tables[g];
    add(t.refs);
    for (const LaneRun& lane : t.lanes) add(lane.pages);
  }
  return sum;
}

CacheStats CacheCore::stats() const {
  const ArenaStats a = arena.stats();
  const GhostStats& ghost = store.ghosts().stats();
  CacheStats s{};
  s.budget_bytes = arena.budget_bytes();
  s.slab_bytes = a.committed_bytes;
  s.free_bytes = a.free_bytes();
  s.slack_bytes = a.slack_bytes;
  s.waste_bytes = a.waste_bytes();
  for (std::uint32_t i = 0; i < arena.class_count(); ++i) {
    const Ledger l = pool.ledger(SizeClass{i});
    const std::uint64_t bytes = arena.class_bytes(SizeClass{i});
    s.referenced_bytes += l.referenced * bytes;
    s.cached_bytes += l.cached * bytes;
    s.fenced_bytes += l.fenced * bytes;
    s.referenced_blocks += l.referenced;
    s.cached_blocks += l.cached;
  }
  s.pinned_bytes = store.stats().pinned_bytes;
  s.pin_budget_bytes =
      static_cast<std::uint64_t>(options.pin_budget * static_cast<double>(arena.budget_bytes()));
  s.leases = leases.size() - free_leases.size();
  s.indexed_blocks = store.stats().blocks;
  s.nodes = store.index().size();
  s.sequences = open_sequences;
  s.parked = parked_count;
  s.requests = counters.requests;
  s.tokens_queried = counters.tokens_queried;
  s.tokens_hit = counters.tokens_hit;
  s.tokens_partial = counters.tokens_partial;
  s.tokens_in_flight = counters.tokens_in_flight;
  s.tokens_published = counters.tokens_published;
  s.blocks_published = counters.blocks_published;
  s.blocks_deduplicated = counters.blocks_deduplicated;
  s.blocks_copied = counters.blocks_copied;
  s.blocks_moved = store.moves();
  s.tokens_adopted = counters.tokens_adopted;
  s.evicted_blocks = store.stats().evicted_blocks;
  s.evicted_bytes = store.stats().evicted_bytes;
  for (std::size_t r = 0; r < kReasonCount; ++r)
    if (reason_kind(static_cast<Reason>(r)) == ReasonKind::eviction)
      s.evictions[r] = journal.count(static_cast<Reason>(r));
  s.ghost_hits = {ghost.would_hit_2x, ghost.would_hit_4x, ghost.would_hit_8x};
  return s;
}

void CacheCore::check() const {
  const Status arena_books = arena.check(), pool_books = pool.check_ledger();
  if (!arena_books.ok()) fmt::print(stderr, "{}\n", arena_books.error().message);
  if (!pool_books.ok()) fmt::print(stderr, "{}\n", pool_books.error().message);
  CHECK(arena_books.ok() && pool_books.ok());
  store.check();

  // Readers as the sequences see them.
  std::unordered_map<std::uint32_t, std::uint32_t> readers;
  std::unordered_map<std::uint32_t, std::uint32_t> holds, computing;  // by node
  std::uint32_t open = 0, parked = 0;
  for (const auto& sp : sequences) {
    const SequenceState& s = *sp;
    if (s.phase == Phase::closed) continue;
    ++open;
    parked += s.phase == Phase::parked;
    const bool has_blocks = s.phase == Phase::running || s.phase == Phase::parked;
    if (has_blocks && !s.cursor.path.empty())
      ++holds[static_cast<std::uint32_t>(s.cursor.path.back())];
    if (has_blocks)
      for (std::size_t i = s.published; i < s.cursor.path.size(); ++i)
        ++computing[static_cast<std::uint32_t>(s.cursor.path[i])];
    CHECK(s.cursor.placed == (s.phase == Phase::placed));
    for (std::size_t i = 0; i < s.cursor.path.size(); ++i) {  // the nodes are those of its tokens
      const NodeId n = s.cursor.path[i];
      CHECK(store.index().parent(n) == (i == 0 ? s.cursor.root : s.cursor.path[i - 1]));
      CHECK(std::ranges::equal(
          store.index().tokens(n),
          std::span(s.tokens).subspan(i * s.tokens_per_block(), s.tokens_per_block())));
    }
    CHECK(s.length <= s.tokens.size() && s.length + s.reserved <= s.options.token_capacity);
    // A compacted sequence has let go of its chain: what it published may be evicted under it.
    const bool ragged =
        std::ranges::any_of(s.tables, [](const BlockTable& t) { return !t.lanes.empty(); });
    for (std::uint32_t g = 0; g < s.layout->group_count; ++g) {
      const BlockTable& t = s.tables[g];
      CHECK(has_blocks || t.count() == 0);
      CHECK(t.refs.size() == t.offsets.size());
      const bool state = s.layout->state >> g & 1;
      if (!t.saved.empty()) ++readers[t.saved.id().index];
      CHECK(t.lane_views.size() == t.lanes.size());
      for (std::size_t i = 0; i < t.lanes.size(); ++i) {
        const LaneRun& lane = t.lanes[i];
        const KvLane& view = t.lane_views[i];
        CHECK(view.pages == lane.offsets.data() && view.slots == lane.positions.size() &&
              view.slots <= t.lane_slots_max && lane.offsets.size() == lane.pages.size());
        for (std::size_t p = 0; p < lane.pages.size() && s.moves_seen == store.moves(); ++p)
          CHECK(lane.offsets[p] == lane.pages[p].offset());
        CHECK(lane.pages.size() ==
              (lane.positions.size() + s.tokens_per_block() - 1) / s.tokens_per_block());
        for (const BlockRef& page : lane.pages) ++readers[page.id().index];
      }
      for (std::uint32_t i = 0; i < t.count(); ++i) {
        const bool passed = i < t.first && i >= s.layout->groups[g].sinks;
        CHECK(t.refs[i].empty() == passed || (s.steps > 0 && s.layout->groups[g].open_only));
        if (t.refs[i].empty()) continue;
        CHECK(pool.alive(t.refs[i].id()));
        ++readers[t.refs[i].id().index];
        if (s.moves_seen == store.moves()) CHECK(t.offsets[i] == t.refs[i].offset());
        if (!state && i < s.published && !ragged && !s.layout->groups[g].open_only)  // the index's
          CHECK(store.has(s.cursor.path[i], g) &&
                store.block_id(s.cursor.path[i], g) == t.refs[i].id());
      }
      if (!state && has_blocks && s.steps == 0)
        CHECK(t.count() == s.layout->block_end(g, s.length));
    }
  }
  CHECK(open == open_sequences && parked == parked_count);
  std::uint32_t layouts_used = 0;
  for (const auto& layout : layouts) layouts_used += layout->roots;
  CHECK(layouts_used == root_slots.size() && layouts_used + free_roots.size() == roots.size());
  std::uint64_t referenced = 0;
  for (const auto& [block, count] : readers) {
    CHECK(pool.readers(pool.id_at(block)) == count);
    ++referenced;
  }
  CHECK(pool.ledger().referenced == referenced + landings + lent);
  for (const Lease& l : leases)
    if (l.live) ++holds[static_cast<std::uint32_t>(l.node)];
  store.index().for_each([&](NodeId n) {
    const auto h = holds.find(static_cast<std::uint32_t>(n)),
               c = computing.find(static_cast<std::uint32_t>(n));
    CHECK(store.node(n).holds == (h == holds.end() ? 0 : h->second) + store.index().is_root(n));
    CHECK(store.node(n).computing == (c == computing.end() ? 0 : c->second));
  });
}

Attached KvCache::lookup(RootId root, std::span<const TokenId> prompt,
                         std::span<const BlockKey> keys) const {
  if (!alive(root)) return {.reason = Reason::never_seen};
  const CacheCore::Root& r = core_->at(root);
  Cursor cursor;
  cursor.root = r.node;
  cursor.chain = {keys, prompt, {}};
  cursor.path.resize(keys.size());
  std::size_t matched = core_->store.index().match(r.node, cursor.chain, cursor.path);
  for (std::size_t i = 0; i < matched; ++i)
    if (!core_->store.ready(cursor.path[i])) matched = i;
  cursor.path.resize(matched);
  const auto limit = static_cast<std::uint32_t>(prompt.empty() ? 0 : prompt.size() - 1);
  const CacheCore::Match m = core_->servable(cursor, *r.layout, limit);
  return {.tokens = m.blocks * core_->options.tokens_per_block + m.partial,
          .partial = m.partial,
          .in_flight = m.in_flight,
          .reason = core_->why_missed(cursor, m, limit)};
}

void KvCache::tree(const std::function<void(const NodeInfo&)>& visit) const {
  const PrefixIndex& index = core_->store.index();
  std::vector<NodeId> next;
  for (const CacheCore::Root& r : core_->roots)
    if (r.layout) next.push_back(r.node);
  while (!next.empty()) {
    const NodeId n = next.back();
    next.pop_back();
    if (!index.is_root(n)) visit(core_->node_info(n));
    index.for_each_child(n, [&](NodeId child) { next.push_back(child); });
  }
}

std::optional<NodeInfo> KvCache::cached(NodeId node, std::uint64_t key_prefix) const {
  const PrefixIndex& index = core_->store.index();
  if (!index.live(node) || index.is_root(node) || index.key(node).prefix() != key_prefix ||
      !core_->store.ready(node))
    return std::nullopt;
  return core_->node_info(node);
}

Result<Evicted> KvCache::evict(const BlockKey& prefix, bool force, bool dry_run) {
  poll();
  const NodeId n = core_->store.index().find(prefix);
  if (n == kNoNode) return Error{Code::not_found, "no cached block has the key " + prefix.hex()};
  const PrefixStore::Swept s = core_->store.sweep(n, Reason::evicted_cleared, force, dry_run);
  return Evicted{s.blocks, s.bytes, s.in_use, s.pinned};
}

Evicted KvCache::clear(bool force, bool dry_run) {
  poll();
  Evicted all;
  for (const CacheCore::Root& r : core_->roots) {
    if (!r.layout) continue;
    const PrefixStore::Swept s =
        core_->store.sweep(r.node, Reason::evicted_cleared, force, dry_run);
    all.blocks += s.blocks;
    all.bytes += s.bytes;
    all.in_use += s.in_use;
    all.pinned += s.pinned;
  }
  return all;
}

CacheStats KvCache::stats() const { return core_->stats(); }
const BlockTimes& KvCache::block_times() const { return core_->store.stats().times; }
std::uint64_t KvCache::cached_bytes(RootId root) const {
  return alive(root) ? core_->store.root_bytes(static_cast<std::uint32_t>(root)) : 0;
}
Status KvCache::set_limits(std::string_view tenant, const TenantLimits& limits) {
  poll();
  Tenants& tenants = core_->store.tenants();
  TRY_STATUS(tenants.set_limits(tenant, limits));
  if (tenants.find(tenant)) core_->store.keep_quota(tenants.intern(tenant).value(), 0);
  return {};
}
TenantInfo KvCache::tenant(std::string_view name) const {
  const Tenants& tenants = core_->store.tenants();
  const Tenants::Tenant* t = tenants.find(name);
  if (t == nullptr) return {};
  return {.limits = t->limits,
          .bytes = t->bytes,
          .share_bytes = tenants.share(*t),
          .pinned_bytes = t->pinned_bytes,
          .leases = t->leases,
          .roots = t->roots};
}
std::uint64_t KvCache::sheltered_bytes(RootId root) const {
  return core_->store.tenants().sheltered(core_->store.tenant(core_->at(root).node));
}
bool KvCache::waive_shares() {
  return core_->store.tenants().active() > 1 && !std::exchange(core_->shares_waived, true);
}
void KvCache::check() const { core_->check(); }

}  // namespace quire
