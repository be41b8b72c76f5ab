// Pins and leases: blocks that were asked to stay.
#include <fmt/format.h>

#include "kv/core.h"
#include "kv/planted.h"

namespace quire {
namespace {

LeaseId make_id(std::uint32_t slot, std::uint32_t generation) {
  return static_cast<LeaseId>(std::uint64_t{generation} << 32 | slot);
}
std::uint32_t slot_of(LeaseId id) {
  return static_cast<std::uint32_t>(static_cast<std::uint64_t>(id));
}

Error no_lease() { return {Code::not_found, "no such lease: it was released or has expired"}; }

}  // namespace

const CacheCore::Lease* CacheCore::find_lease(LeaseId id) const {
  const std::uint32_t slot = slot_of(id);
  if (slot >= leases.size() || !leases[slot].live || make_id(slot, leases[slot].generation) != id)
    return nullptr;
  return &leases[slot];
}

// The nodes of a lease, last first.
template <class F>
void CacheCore::for_each_node(const Lease& l, F&& f) const {
  NodeId n = l.node;
  for (std::uint32_t b = l.end_block; b-- > l.first_block; n = store.index().parent(n)) f(n);
}

// Whether the tenant may have it: neither the table of leases nor the pin budget is one tenant's alone.
Status CacheCore::may_lease(const Lease& l, TenantSlot slot, std::uint64_t request) {
  if (planted(Bug::exceed_leases)) return {};
  const Tenants::Tenant& t = store.tenants().at(slot);
  const std::uint32_t most = t.limits.leases ? t.limits.leases : options.tenant_leases_max;
  if (t.leases >= most)
    return Error{Code::exhausted,
                 fmt::format("this tenant has {} of {} leases; release some", t.leases, most)};
  if (!l.pin) return {};
  std::uint64_t more = 0;
  for_each_node(l, [&](NodeId n) { more += store.node(n).pins == 0 ? store.bytes(n) : 0; });
  const auto part = [](double share, std::uint64_t of) {
    return static_cast<std::uint64_t>(share * static_cast<double>(of));
  };
  const std::uint64_t all = part(options.pin_budget, arena.budget_bytes());
  const std::uint64_t own =
      t.limits.pin_bytes ? t.limits.pin_bytes : part(options.tenant_pin_share, all);
  const std::uint64_t pinned = store.stats().pinned_bytes;
  if (pinned + more <= all && t.pinned_bytes + more <= own) return {};
  journal.add(
      {.time = tick(), .request = request, .bytes = more, .reason = Reason::refused_pin_budget});
  if (pinned + more > all)
    return Error{
        Code::exhausted,
        fmt::format("pinning {} more bytes would exceed the pin budget of {} bytes ({} are "
                    "pinned); release pins or raise --pin-budget",
                    more, all, pinned)};
  return Error{Code::exhausted,
               fmt::format("pinning {} more bytes would exceed what one tenant may pin: {} of {} "
                           "bytes are pinned; release pins",
                           more, t.pinned_bytes, own)};
}

Result<LeaseId> CacheCore::lease(const SequenceState& s, const LeaseRequest& r) {
  const std::uint32_t tokens_per_block = s.tokens_per_block();
  // Placed sequences name cached blocks by their cursor, running ones by what they published.
  std::uint32_t known =
      s.phase == Phase::placed ? static_cast<std::uint32_t>(s.cursor.path.size()) : s.published;
  while (known > 0 && store.index().present(s.cursor.path[known - 1]) == 0) --known;
  Lease l;
  l.first_block = r.first_token / tokens_per_block;
  l.end_block = std::min(known, r.end_token / tokens_per_block);
  if (l.end_block <= l.first_block)
    return Error{Code::not_found,
                 fmt::format("tokens {} to {} hold no whole cached block", r.first_token,
                             std::min<std::uint32_t>(r.end_token, known * tokens_per_block))};
  l.node = s.cursor.path[l.end_block - 1];
  l.priority = std::min<std::uint8_t>(r.priority, 100);
  l.pin = r.pin;
  l.expires = r.ttl > 0 ? tick() + r.ttl : 0;
  l.label = r.label;
  l.breakpoint = r.breakpoint && l.pin && l.expires > 0;
  if (const auto same = breakpoints.find(static_cast<std::uint32_t>(l.node));
      l.breakpoint && same != breakpoints.end() &&
      leases[same->second].first_block == l.first_block) {
    keep_until(same->second, std::max(l.expires, leases[same->second].expires));
    return make_id(same->second, leases[same->second].generation);
  }
  const TenantSlot tenant = store.tenant(l.node);
  TRY_STATUS(may_lease(l, tenant, s.options.request));
  if (free_leases.empty()) {
    if (leases.size() >= kLeasesMax)
      return Error{Code::exhausted, fmt::format("{} leases exist; release some", leases.size())};
    leases.push_back({});
    free_leases.push_back(static_cast<std::uint32_t>(leases.size() - 1));
  }
  const std::uint32_t slot = free_leases.back();
  free_leases.pop_back();
  l.generation = leases[slot].generation + 1;
  l.live = true;
  leases[slot] = l;
  store.tenants().add_lease(tenant);
  for_each_node(l, [&](NodeId n) {
    store.lease(n, l.expires ? l.expires : std::numeric_limits<Nanoseconds>::max(), l.priority);
    if (l.pin) store.pin(n);
  });
  store.anchor(l.node);
  if (l.expires) lease_expiry.add(slot, l.expires);
  if (l.breakpoint) breakpoints.try_emplace(static_cast<std::uint32_t>(l.node), slot);
  journal.add({.time = tick(),
               .request = s.options.request,
               .key = store.index().key(l.node).prefix(),
               .tokens = (l.end_block - l.first_block) * tokens_per_block,
               .reason = Reason::pinned});
  return make_id(slot, l.generation);
}

void CacheCore::end_lease(std::uint32_t slot) {
  Lease& l = leases[slot];
  if (l.expires) lease_expiry.remove(slot);
  for_each_node(l, [&](NodeId n) {
    if (l.pin) store.unpin(n);
    store.end_lease(n);
  });
  forget_breakpoint(slot);
  journal.add(
      {.time = tick(), .key = store.index().key(l.node).prefix(), .reason = Reason::unpinned});
  l.live = false;
  store.tenants().remove_lease(store.tenant(l.node));
  store.unanchor(l.node);
  free_leases.push_back(slot);
}

void CacheCore::expire_leases() {
  while (const std::optional<std::uint32_t> slot = lease_expiry.due(tick())) end_lease(*slot);
}

void CacheCore::forget_breakpoint(std::uint32_t slot) {
  const auto at = breakpoints.find(static_cast<std::uint32_t>(leases[slot].node));
  if (at != breakpoints.end() && at->second == slot) breakpoints.erase(at);
}

// One breakpoint is a pin no longer: the tenant's own come first, then those that expire first.
bool CacheCore::soften_breakpoint(TenantSlot own) {
  const auto rank = [&](const Lease& l) {
    return std::pair(store.tenant(l.node) != own, l.expires);
  };
  const Lease* first = nullptr;
  for (const auto& [node, slot] : breakpoints)
    if (!first || rank(leases[slot]) < rank(*first)) first = &leases[slot];
  if (!first) return false;
  const auto slot = static_cast<std::uint32_t>(first - leases.data());
  for_each_node(*first, [&](NodeId n) { store.unpin(n); });
  leases[slot].pin = false;
  forget_breakpoint(slot);
  return true;
}

Status CacheCore::release(LeaseId id) {
  if (!find_lease(id)) return no_lease();
  end_lease(slot_of(id));
  return {};
}

Status CacheCore::extend(LeaseId id, Nanoseconds ttl) {
  if (!find_lease(id)) return no_lease();
  if (ttl == 0) forget_breakpoint(slot_of(id));  // somebody wants it for good
  keep_until(slot_of(id), ttl > 0 ? tick() + ttl : 0);
  return {};
}

void CacheCore::keep_until(std::uint32_t slot, Nanoseconds expires) {
  Lease& l = leases[slot];
  if (l.expires) lease_expiry.remove(slot);
  l.expires = expires;
  if (l.expires) lease_expiry.add(slot, l.expires);
  for_each_node(l, [&](NodeId n) {
    store.lease(n, l.expires ? l.expires : std::numeric_limits<Nanoseconds>::max(), l.priority);
    store.end_lease(n);
  });
}

LeaseInfo CacheCore::lease_info(std::uint32_t slot) const {
  const Lease& l = leases[slot];
  std::uint64_t bytes = 0;
  for_each_node(l, [&](NodeId n) { bytes += store.bytes(n); });
  return {.id = make_id(slot, l.generation),
          .tenant = store.tenants().at(store.tenant(l.node)).name,
          .label = l.label,
          .node = store.index().key(l.node),
          .tokens = (l.end_block - l.first_block) * options.tokens_per_block,
          .bytes = bytes,
          .expires = l.expires,
          .priority = l.priority,
          .pin = l.pin};
}

Result<LeaseId> KvCache::lease(const Sequence& s, const LeaseRequest& request) {
  poll();
  return core_->lease(*s.state_, request);
}
Status KvCache::release(LeaseId id) { return core_->release(id); }
Status KvCache::extend(LeaseId id, Nanoseconds ttl) { return core_->extend(id, ttl); }
bool KvCache::soften_breakpoint(RootId root) {
  return core_->soften_breakpoint(core_->store.tenant(core_->at(root).node));
}
Result<LeaseInfo> KvCache::lease_info(LeaseId id) const {
  if (!core_->find_lease(id)) return no_lease();
  return core_->lease_info(slot_of(id));
}
std::vector<LeaseInfo> KvCache::leases(std::optional<std::string_view> tenant, LeaseId after,
                                       std::size_t limit) const {
  std::vector<LeaseInfo> all;
  // Generations begin with 1, so the id 0 is nobody's.
  const std::uint32_t first = after == LeaseId{} ? 0 : slot_of(after) + 1;
  for (std::uint32_t i = first; i < core_->leases.size() && all.size() < limit; ++i) {
    const CacheCore::Lease& l = core_->leases[i];
    if (!l.live || (planted(Bug::unlisted_lease) && l.expires == 0)) continue;
    if (tenant && core_->store.tenants().at(core_->store.tenant(l.node)).name != *tenant) continue;
    all.push_back(core_->lease_info(i));
  }
  return all;
}

}  // namespace quire
