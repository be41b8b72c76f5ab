#include "kv/prefix_store.h"

#include <algorithm>
#include <unordered_map>

#include "base/random.h"
#include "kv/planted.h"

namespace quire {
namespace {

double seconds(Nanoseconds t) { return static_cast<double>(t) * 1e-9; }

// Not because it is old, or because somebody wants it gone.
bool leaves_for_room(Reason reason) {
  return reason != Reason::evicted_expired && reason != Reason::evicted_cleared;
}

}  // namespace

PrefixStore::PrefixStore(const PrefixStoreOptions& options, BlockPool& pool, Journal& journal)
    : pool_(pool),
      journal_(journal),
      index_(
          {.node_capacity = options.node_capacity, .tokens_per_block = options.tokens_per_block}),
      contents_(options.node_capacity),
      ghosts_(options.ghost_capacity),
      leased_(options.blocks_max),
      policy_(options.policy),
      below_(options.below),
      blocks_max_(options.blocks_max),
      tenants_(options.tenants_max, options.blocks_max),
      subtree_(options.node_capacity) {
  nodes_.reserve(options.node_capacity);
  blocks_.reserve(std::size_t{options.node_capacity} * kGroupsMax);
  pool_.set_listener(this);
}

PrefixStore::~PrefixStore() {
  pool_.set_listener(nullptr);
  blocks_.clear();
}

void PrefixStore::add_class(SizeClass c) {
  while (evictors_.size() <= static_cast<std::size_t>(c))
    evictors_.push_back(policy_->make({.entries_max = blocks_max_}));
}

NodeId PrefixStore::add_root(std::uint32_t root, TenantSlot tenant, const CacheLayout& layout) {
  // Shares are of memory: nobody is kept out because all others have nodes within theirs.
  if (index_.full() && !evict_any(Reason::evicted_capacity, tenant) &&
      !evict_any(Reason::evicted_capacity, kNoTenant))
    return kNoNode;
  const NodeId n = index_.add_root();
  if (raw(n) >= nodes_.size()) {
    nodes_.resize(raw(n) + 1);
    blocks_.resize(nodes_.size() * kGroupsMax);
  }
  nodes_[raw(n)] = {.created = now_,
                    .last_used = now_,
                    .layout = &layout,
                    .realm = mix64(root + 1),
                    .root = root,
                    .holds = 1};
  if (root >= root_bytes_.size()) {
    root_bytes_.resize(root + 1);
    root_tenants_.resize(root + 1, kNoTenant);
  }
  root_tenants_[root] = tenant;
  tenants_.add_root(tenant);
  return n;
}

void PrefixStore::remove_root(NodeId n) {
  CHECK(nodes_[raw(n)].cursors == nullptr && root_bytes_[nodes_[raw(n)].root] == 0);
  tenants_.remove_root(tenant(n));
  root_tenants_[nodes_[raw(n)].root] = kNoTenant;
  nodes_[raw(n)] = {};
  index_.remove_root(n);
}

NodeId PrefixStore::need(NodeId parent, const BlockKey& key, std::uint64_t change,
                         const TokenId* tokens) {
  NodeId n = index_.find(parent, key, change, tokens);
  if (n != kNoNode) return n;
  if (index_.full() && !evict_any(Reason::evicted_capacity, tenant(parent))) return kNoNode;
  n = index_.insert(parent, key, change, tokens);
  if (n == kNoNode) return n;
  if (raw(n) >= nodes_.size()) {
    nodes_.resize(raw(n) + 1);
    blocks_.resize(nodes_.size() * kGroupsMax);
  }
  const CacheNode& above = nodes_[raw(parent)];
  nodes_[raw(n)] = {.created = now_,
                    .last_used = now_,
                    .layout = above.layout,
                    .realm = realm(parent, change),
                    .root = above.root};
  return n;
}

bool PrefixStore::ready(NodeId n) const {
  const std::uint32_t chain = nodes_[raw(n)].layout->chain;
  return (index_.present(n) & chain) == chain;
}

void PrefixStore::put(NodeId n, std::uint32_t group, BlockId b) {
  CHECK(!has(n, group));
  pool_.set_owner(b, owner_of(n, group));
  block(n, group) = pool_.cache(b);
  ++stats_.blocks;
  CacheNode& node = nodes_[raw(n)];
  node.hits = std::max(node.hits, evictor(b).stored(index_.key(n).prefix(), now_));
  root_bytes_[node.root] += pool_.bytes(b);
  tenants_.add_bytes(tenant(n), pool_.bytes(b));
  if (index_.present(n) == 0) {
    nodes_[raw(n)].created = now_;  // the node may be older: announced, or emptied before
    const NodeId above = index_.parent(n);
    if (nodes_[raw(above)].stocked++ == 0) refresh(above);
  }
  index_.set_present(n, index_.present(n) | 1u << group);
  if (nodes_[raw(n)].pins > 0) add_pinned(n, pool_.bytes(b));
}

void PrefixStore::became_ready(NodeId n) {
  for (NodeId m = n; !index_.is_root(m) && !index_.exposed(m); m = index_.parent(m)) expose(m);
  const NodeId above = index_.parent(n);
  for (Cursor* c = nodes_[raw(above)].cursors; c != nullptr;) {
    Cursor* const following = c->next;
    unlink(*c, above);
    while (advance(*c)) {
    }
    link(*c, c->node());
    c = following;
  }
}

std::uint64_t PrefixStore::bytes(NodeId n) const {
  std::uint64_t sum = 0;
  for (std::uint32_t g = 0; g < kGroupsMax; ++g)
    if (has(n, g)) sum += pool_.bytes(block(n, g).id());
  return sum;
}

void PrefixStore::unanchor(NodeId n) {
  CHECK(nodes_[raw(n)].holds > 0);
  --nodes_[raw(n)].holds;
  prune(n);
}

void PrefixStore::touch(NodeId n, std::uint8_t priority, Nanoseconds lease_until, bool hit) {
  CacheNode& node = nodes_[raw(n)];
  if (hit) {
    stats_.times.reuse_gap.add(seconds(now_ - node.last_used));
    ++node.hits;
  }
  if (hit && below_ && node.below != index_.present(n))
    for (std::uint32_t g = 0; g < kGroupsMax; ++g) offer(n, g, Offer::hit);
  node.last_used = now_;
  node.priority = std::max(node.priority, priority);
  if (lease_until > node.lease_until) {
    node.lease_until = lease_until;
    refresh(n);
  }
}

// Waiting sequences
// ---------------------------------------------------------------------------------------------------

bool PrefixStore::advance(Cursor& c) {
  const std::size_t block_number = c.path.size();
  if (block_number >= c.chain.keys.size()) return false;
  const std::uint32_t tokens_per_block = index_.tokens_per_block();
  const NodeId n = index_.find(c.node(), c.chain.keys[block_number],
                               c.chain.change_at(static_cast<std::uint32_t>(block_number)),
                               &c.chain.tokens[block_number * tokens_per_block]);
  if (n == kNoNode || !ready(n)) return false;
  c.path.push_back(n);
  return true;
}

void PrefixStore::place(Cursor& c) {
  c.path.resize(c.chain.keys.size());
  std::size_t matched = index_.match(c.root, c.chain, c.path);
  for (std::size_t i = 0; i < matched; ++i)
    if (!ready(c.path[i])) matched = i;
  c.path.resize(matched);
  put_at(c);
}

void PrefixStore::put_at(Cursor& c) {
  CHECK(!c.placed);
  c.placed = true;
  link(c, c.node());
}

void PrefixStore::follow(Cursor& c) {
  unlink(c, c.node());
  while (advance(c)) {
  }
  link(c, c.node());
}

void PrefixStore::remove(Cursor& c) {
  CHECK(c.placed);
  c.placed = false;
  unlink(c, c.node());
}

void PrefixStore::link(Cursor& c, NodeId n) {
  Cursor*& first = nodes_[raw(n)].cursors;
  c.next = first;
  c.previous = nullptr;
  if (first) first->previous = &c;
  first = &c;
}

void PrefixStore::unlink(Cursor& c, NodeId n) {
  if (c.next) c.next->previous = c.previous;
  (c.previous ? c.previous->next : nodes_[raw(n)].cursors) = c.next;
  c.next = c.previous = nullptr;
}

// Leases
// --------------------------------------------------------------------------------------------------------------

void PrefixStore::add_pinned(NodeId n, std::uint64_t bytes) {
  stats_.pinned_bytes += bytes;
  tenants_.add_pinned(tenant(n), bytes);
}

void PrefixStore::remove_pinned(NodeId n, std::uint64_t bytes) {
  stats_.pinned_bytes -= bytes;
  tenants_.remove_pinned(tenant(n), bytes);
}

void PrefixStore::pin(NodeId n) {
  if (nodes_[raw(n)].pins++ > 0) return;
  add_pinned(n, bytes(n));
  refresh(n);
}

void PrefixStore::unpin(NodeId n) {
  CHECK(nodes_[raw(n)].pins > 0);
  if (--nodes_[raw(n)].pins > 0) return;
  remove_pinned(n, bytes(n));
  refresh(n);
}

void PrefixStore::lease(NodeId n, Nanoseconds until, std::uint8_t priority) {
  CacheNode& node = nodes_[raw(n)];
  ++node.leases;
  node.lease_until = std::max(node.lease_until, until);
  node.priority = priority;
  refresh(n);
}

void PrefixStore::end_lease(NodeId n) {
  CacheNode& node = nodes_[raw(n)];
  CHECK(node.leases > 0);
  if (--node.leases > 0) return;
  node.lease_until = 0;
  refresh(n);
}

void PrefixStore::expire() {
  while (!leased_.empty() && leased_.next_expiry() <= now_) {
    const std::uint64_t owner = pool_.owner(pool_.id_at(leased_.top()));
    refresh(node_of(owner), group_of(owner));
  }
}

// Eviction
// ------------------------------------------------------------------------------------------------------------

bool PrefixStore::may_leave(NodeId n, std::uint32_t group) const {
  const CacheNode& node = nodes_[raw(n)];
  if (node.pins > 0 && !planted(Bug::evict_pinned)) return false;
  if (pool_.state(block(n, group).id()) != BlockState::cached && !planted(Bug::evict_in_use))
    return false;
  if (planted(Bug::evict_interior)) return true;
  return !(node.layout->chain >> group & 1) || node.stocked == 0;
}

EvictEntry PrefixStore::entry(NodeId n, std::uint32_t group) const {
  const CacheNode& node = nodes_[raw(n)];
  const std::uint32_t tokens = index_.tokens_per_block();
  return {.key = index_.key(n).prefix(),
          .bytes = pool_.bytes(block(n, group).id()),
          .last_use = node.last_used,
          .recompute_ns = cost_.block_ns(tokens, (index_.depth(n) - 1) * tokens),
          .expires = node.lease_until,
          .hits = node.hits,
          .priority = node.priority,
          .end = node.end};
}

double PrefixStore::value(BlockId b) const {
  const std::uint64_t owner = pool_.owner(b);
  return owner == 0 ? 0 : cached_value(entry(node_of(owner), group_of(owner)));
}

void PrefixStore::withdraw(BlockId b) {
  const EvictId id{b.index};
  if (evictor(b).contains(id)) {
    evictor(b).remove(id);
    tenants_.unshelve(tenant_of(b.index), shelf_of(pool_.size_class(b)), b.index);
  }
  if (leased_.contains(b.index)) {
    leased_.remove(b.index);
    tenants_.unshelve(tenant_of(b.index), Tenants::kLeased, b.index);
  }
}

// In the order of last use, almost: a parent that shows up when its last child has left is as old.
void PrefixStore::shelve(NodeId n, Tenants::Shelf shelf, std::uint32_t b) {
  const std::uint32_t first = tenants_.front(tenant(n), shelf);
  const bool older =
      first != Tenants::kNoBlock &&
      nodes_[raw(n)].last_used <= nodes_[raw(node_of(pool_.owner(pool_.id_at(first))))].last_used;
  tenants_.shelve(tenant(n), shelf, b, older);
}

void PrefixStore::refresh(NodeId n, std::uint32_t group) {
  const BlockId b = block(n, group).id();
  withdraw(b);
  if (!may_leave(n, group)) return;
  const bool leased = nodes_[raw(n)].lease_until > now_;
  if (leased)
    leased_.add(b.index, nodes_[raw(n)].lease_until);
  else
    evictor(b).add(EvictId{b.index}, entry(n, group));
  shelve(n, leased ? Tenants::kLeased : shelf_of(pool_.size_class(b)), b.index);
}

void PrefixStore::refresh(NodeId n) {
  for (std::uint32_t present = index_.present(n); present != 0; present &= present - 1)
    refresh(n, static_cast<std::uint32_t>(std::countr_zero(present)));
}

void PrefixStore::block_idle(BlockId b, std::uint64_t owner) {
  if (owner == 0) return;
  tenants_.add_idle(tenant(node_of(owner)), pool_.bytes(b));
  CacheNode& node = nodes_[raw(node_of(owner))];
  node.last_used = now_;
  node.end = node.stocked == 0;
  evictor(b).idle({node.hits, node.end}, now_);
  refresh(node_of(owner), group_of(owner));
}

void PrefixStore::block_busy(BlockId b, std::uint64_t owner) {
  if (owner == 0) return;
  tenants_.remove_idle(tenant(node_of(owner)), pool_.bytes(b));
  const CacheNode& node = nodes_[raw(node_of(owner))];
  evictor(b).used({node.hits, node.end}, now_ - node.last_used, now_);
  withdraw(b);
}

void PrefixStore::drop_block(NodeId n, std::uint32_t group, Reason reason) {
  CachedBlock& held = block(n, group);
  const BlockId b = held.id();
  withdraw(b);
  if (leaves_for_room(reason)) offer(n, group, Offer::leaving);
  nodes_[raw(n)].below &= static_cast<std::uint8_t>(~(1u << group));
  const std::uint64_t freed = pool_.bytes(b);
  if (nodes_[raw(n)].pins > 0) remove_pinned(n, freed);
  if (pool_.state(b) == BlockState::cached) tenants_.remove_idle(tenant(n), freed);
  tenants_.remove_bytes(tenant(n), freed);
  pool_.set_owner(b, 0);
  held = {};
  index_.set_present(n, index_.present(n) & ~(1u << group));
  if (index_.present(n) == 0) {
    const NodeId above = index_.parent(n);
    if (--nodes_[raw(above)].stocked == 0) refresh(above);
  }
  --stats_.blocks;
  root_bytes_[nodes_[raw(n)].root] -= freed;
  stats_.times.lifetime.add(seconds(now_ - nodes_[raw(n)].created));
  stats_.times.idle_before_evict.add(seconds(now_ - nodes_[raw(n)].last_used));
  ++stats_.evicted_blocks;
  stats_.evicted_bytes += freed;
  journal_.add({.time = now_,
                .key = index_.key(n).prefix(),
                .bytes = freed,
                .extra = std::uint64_t{raw(n)} << 32,
                .block = index_.depth(n) - 1,
                .tokens = index_.tokens_per_block(),
                .group = static_cast<std::uint16_t>(group),
                .reason = reason});
}

void PrefixStore::drop_node(NodeId n, Reason reason) {
  ghosts_.add(index_.key(n).prefix(), bytes(n), reason, now_);
  for (std::uint32_t g = 0; g < kGroupsMax; ++g)
    if (has(n, g)) drop_block(n, g, reason);
  if (!ready(n)) {  // it may live on, as somebody is to compute it again, but serves nothing
    retreat_cursors(n);
    hide(n);
  }
  prune(n);
}

void PrefixStore::evict(NodeId n, std::uint32_t group, Reason reason) {
  const CacheLayout& layout = *nodes_[raw(n)].layout;
  if (layout.chain >> group & 1 || index_.present(n) == 1u << group) return drop_node(n, reason);
  drop_block(n, group, reason);
}

void PrefixStore::retreat_cursors(NodeId n) {
  if (planted(Bug::forget_cursor)) return;
  const NodeId above = index_.parent(n);
  while (nodes_[raw(n)].cursors != nullptr) {
    Cursor& c = *nodes_[raw(n)].cursors;
    unlink(c, n);
    c.path.pop_back();
    link(c, above);
  }
}

void PrefixStore::prune(NodeId n) {
  while (!index_.is_root(n)) {
    CacheNode& node = nodes_[raw(n)];
    if (index_.present(n) != 0 || index_.children(n) > 0 || node.holds > 0) return;
    CHECK(node.computing == 0 && node.pins == 0);
    const NodeId above = index_.parent(n);
    retreat_cursors(n);
    hide(n);
    index_.erase(n);
    n = above;
  }
}

std::uint32_t PrefixStore::gather(NodeId n) {
  std::uint32_t count = 0;
  subtree_[count++] = n;
  for (std::uint32_t i = 0; i < count; ++i)
    index_.for_each_child(subtree_[i], [&](NodeId child) { subtree_[count++] = child; });
  return count;
}

bool PrefixStore::idle(NodeId n) const {
  for (std::uint32_t g = 0; g < kGroupsMax; ++g)
    if (has(n, g) && pool_.state(block(n, g).id()) != BlockState::cached) return false;
  return true;
}

PrefixStore::Swept PrefixStore::sweep(NodeId n, Reason reason, bool force, bool dry_run) {
  Swept swept{};
  std::unordered_map<std::uint32_t, std::uint32_t> left;  // dry run: children that would be gone
  for (std::uint32_t i = gather(n); i-- > 0;) {
    const NodeId m = subtree_[i];
    if (index_.present(m) == 0) continue;
    const std::uint32_t stocked = nodes_[raw(m)].stocked - (dry_run ? left[raw(m)] : 0);
    const bool leaf = stocked == 0 || nodes_[raw(m)].layout->chain == 0;
    if (!idle(m) || !leaf) {
      ++swept.in_use;
    } else if (nodes_[raw(m)].pins > 0 && !force) {
      ++swept.pinned;
    } else {
      swept.blocks += static_cast<std::uint32_t>(std::popcount(index_.present(m)));
      swept.bytes += bytes(m);
      if (!dry_run)
        drop_node(m, reason);
      else if (!index_.is_root(m))
        ++left[raw(index_.parent(m))];
    }
  }
  return swept;
}

void PrefixStore::check() const {
  index_.check();
  std::uint64_t in_evictors = 0, in_heap = 0, pinned = 0, exposed = 0;
  std::vector<std::uint64_t> by_root(root_bytes_.size());
  std::vector<std::uint64_t> idle_of(tenants_.size()), pinned_of(tenants_.size()),
      bytes_of(tenants_.size());
  index_.for_each([&](NodeId n) {
    const CacheNode& node = nodes_[raw(n)];
    const auto owner = static_cast<std::size_t>(tenant(n));
    if (node.pins > 0) pinned += bytes(n);
    if (node.pins > 0) pinned_of[owner] += bytes(n);
    bytes_of[owner] += bytes(n);
    by_root[node.root] += bytes(n);
    for (const Cursor* c = node.cursors; c != nullptr; c = c->next)
      CHECK(c->placed && c->node() == n);
    std::uint32_t stocked = 0;
    index_.for_each_child(n, [&](NodeId child) { stocked += index_.present(child) != 0; });
    CHECK(stocked == node.stocked);
    if (index_.is_root(n)) return;
    const NodeId above = index_.parent(n);
    exposed += index_.exposed(n);
    CHECK(node.realm == realm(above, index_.change(n)));
    CHECK(index_.present(n) != 0 || index_.children(n) > 0 || node.holds > 0);
    const std::uint32_t chain = node.layout->chain;
    if (chain != 0) CHECK(index_.exposed(n) == (index_.present(n) != 0));
    if (chain != 0 && index_.present(n) != 0) {
      CHECK(ready(n));
      CHECK(index_.is_root(above) || ready(above));
    }
    for (std::uint32_t g = 0; g < kGroupsMax; ++g) {
      CHECK(block(n, g).empty() == !has(n, g));
      if (!has(n, g)) continue;
      const BlockId b = block(n, g).id();
      CHECK(pool_.alive(b) && pool_.cached(b) && pool_.owner(b) == owner_of(n, g));
      CHECK(pool_.size_class(b) == node.layout->groups[g].size_class);
      const bool listed = evictor(b).contains(EvictId{b.index}), leased = leased_.contains(b.index);
      CHECK((listed || leased) == may_leave(n, g) && !(listed && leased));
      if (pool_.state(b) == BlockState::cached) idle_of[owner] += pool_.bytes(b);
      in_evictors += listed;
      in_heap += leased;
    }
  });
  std::uint64_t listed = 0;
  for (const auto& e : evictors_) listed += e->size();
  CHECK(listed == in_evictors && leased_.size() == in_heap && pinned == stats_.pinned_bytes);
  CHECK(by_root == root_bytes_ && exposed == contents_.size());
  for (std::uint32_t i = 0; i < tenants_.size(); ++i) {
    const Tenants::Tenant& t = tenants_.at(TenantSlot{i});
    CHECK(t.bytes == bytes_of[i] && t.idle_bytes == idle_of[i] && t.pinned_bytes == pinned_of[i]);
  }
}

}  // namespace quire
