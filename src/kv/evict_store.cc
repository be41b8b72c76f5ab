// Who leaves: what the policy names, unless that would take from a tenant what is its own share.
#include <algorithm>

#include "kv/planted.h"
#include "kv/prefix_store.h"

namespace quire {

TenantSlot PrefixStore::tenant_of(std::uint32_t block) const {
  return tenant(node_of(pool_.owner(pool_.id_at(block))));
}

bool PrefixStore::may_take(NodeId n, TenantSlot by) const {
  return by == kNoTenant || planted(Bug::take_shares) || tenant(n) == by ||
         tenants_.excess(tenant(n)) >= bytes(n);
}

// The block of this kind that leaves for `by`: its own if it has more than its share, else of the
// tenant that has most above its own. `best` is what the policy would take.
std::uint32_t PrefixStore::fair(Tenants::Shelf shelf, TenantSlot by, std::uint32_t best) const {
  if (by == kNoTenant || tenants_.active() <= 1 || planted(Bug::take_shares)) return best;
  const TenantSlot owner = tenant_of(best);
  const bool own_first = tenants_.excess(by) > 0;
  if (own_first) {
    if (owner == by) return best;
    if (const std::uint32_t own = tenants_.front(by, shelf); own != Tenants::kNoBlock) return own;
  }
  if (owner != by && may_take(node_of(pool_.owner(pool_.id_at(best))), by)) return best;
  std::uint64_t most = 0;
  std::uint32_t found = Tenants::kNoBlock;
  for (std::uint32_t i = 0; i < tenants_.size(); ++i) {
    const TenantSlot t{i};
    const std::uint32_t first = tenants_.front(t, shelf);
    if (t == by || first == Tenants::kNoBlock || tenants_.excess(t) <= most) continue;
    if (!may_take(node_of(pool_.owner(pool_.id_at(first))), by)) continue;
    most = tenants_.excess(t);
    found = first;
  }
  return found;
}

bool PrefixStore::evict_one(SizeClass c, Reason reason, TenantSlot by) {
  Evictor& evictor = *evictors_[static_cast<std::size_t>(c)];
  const std::optional<EvictId> best = evictor.peek(now_);
  if (!best) return false;
  const std::uint32_t victim = fair(shelf_of(c), by, static_cast<std::uint32_t>(*best));
  if (victim == Tenants::kNoBlock) return false;
  const std::uint64_t owner = pool_.owner(pool_.id_at(victim));
  const EvictEntry& e = evictor.entry(EvictId{victim});
  last_evicted_density_ = cached_value(e) / static_cast<double>(e.bytes);
  if (EvictId{victim} == *best) {
    tenants_.unshelve(tenant(node_of(owner)), shelf_of(c), victim);
    evictor.pick(now_);
    if (evictor.picked_expired()) reason = Reason::evicted_expired;
  }
  evict(node_of(owner), group_of(owner), reason);
  return true;
}

bool PrefixStore::evict_own(TenantSlot t, Reason reason, bool leased) {
  if (t == kNoTenant) return false;
  static_assert(Tenants::kLeased == 0);  // it comes last
  for (std::size_t shelf = evictors_.size() + 1; shelf-- > (leased ? 0 : 1);) {
    const std::uint32_t block = tenants_.front(t, static_cast<Tenants::Shelf>(shelf));
    if (block == Tenants::kNoBlock) continue;
    const std::uint64_t owner = pool_.owner(pool_.id_at(block));
    evict(node_of(owner), group_of(owner), reason);
    return true;
  }
  return false;
}

bool PrefixStore::keep_quota(TenantSlot t, std::uint64_t more) {
  const std::uint64_t most = planted(Bug::exceed_quota) ? 0 : tenants_.at(t).limits.bytes;
  while (most > 0 && tenants_.at(t).bytes + more > most)
    if (!evict_own(t, Reason::evicted_quota, true)) return false;
  return true;
}

bool PrefixStore::evict_any(Reason reason, TenantSlot by) {
  const std::uint32_t nodes = index_.size();
  for (std::size_t c = 0; c < evictors_.size(); ++c)
    while (evict_one(static_cast<SizeClass>(c), reason, by))
      if (index_.size() < nodes) return true;
  while (evict_own(by, reason, false))
    if (index_.size() < nodes) return true;
  return false;
}

bool PrefixStore::evict_leased(TenantSlot by) {
  if (leased_.empty()) return false;
  const std::uint32_t victim = fair(Tenants::kLeased, by, leased_.top());
  if (victim == Tenants::kNoBlock) return false;
  const std::uint64_t owner = pool_.owner(pool_.id_at(victim));
  evict(node_of(owner), group_of(owner), Reason::evicted_capacity);
  return true;
}

bool PrefixStore::protects(BlockId b, TenantSlot by) const {
  const NodeId n = node_of(pool_.owner(b));
  const CacheNode& node = nodes_[raw(n)];
  return node.pins > 0 || node.lease_until > now_ || !may_take(n, by);
}

bool PrefixStore::evict_with_descendants(BlockId b, Reason reason, TenantSlot by) {
  const std::uint64_t owner = pool_.owner(b);
  const NodeId n = node_of(owner);
  if (!(nodes_[raw(n)].layout->chain >> group_of(owner) & 1)) {
    evict(n, group_of(owner), reason);
    return true;
  }
  const std::uint32_t count = gather(n);
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const CacheNode& below = nodes_[raw(subtree_[i])];
    if (below.pins > 0 || below.lease_until > now_ || !idle(subtree_[i])) return false;
    sum += bytes(subtree_[i]);
  }
  if (by != kNoTenant && tenant(n) != by && tenants_.excess(tenant(n)) < sum) return false;
  for (std::uint32_t i = count; i-- > 0;)
    drop_node(subtree_[i], i == 0 ? reason : Reason::evicted_orphan);
  return true;
}

}  // namespace quire
