// Tenants: limits that change, roots that come and go, and the rules that nobody may break.
#include <algorithm>

#include "sim/world.h"

namespace quire {

std::string Simulator::tenant_name(std::size_t tree) const {
  return "tenant " + std::to_string(tree);
}

void Simulator::limit_tenant() {
  const TenantLimits limits{.bytes = random_.chance(0.5) ? kPage * random_.below(6) : 0,
                            .pin_bytes = random_.chance(0.3) ? kPage * (1 + random_.below(3)) : 0,
                            .leases = static_cast<std::uint32_t>(random_.below(4))};
  CHECK(cache_->set_limits(tenant_name(random_.below(trees_.size())), limits).ok());
  ++report_.limits;
}

// Somebody comes with a way of storing that nobody has seen. Whatever has no user may be forgotten
// for it, and nothing else.
void Simulator::visit() {
  const auto layers = static_cast<std::uint32_t>(1 + random_.below(8));
  const Geometry g =
      toy_geometry({random_.chance(0.5) ? toy_group(GroupKind::full, layers, 1)
                                        : toy_group(GroupKind::window, 1, 1, 5 + 4 * layers)},
                   kBlock);
  RootIdentity identity;
  identity.tenant = "visitor " + std::to_string(random_.below(3));
  const Result<RootId> root = cache_->root(identity, g);
  if (!root.ok()) CHECK(root.error().code == Code::exhausted);
  for (const auto& l : live_) CHECK(cache_->alive(l->sequence.root()));
  ++report_.visits;
}

// The root of a tree, made again if it was forgotten. None: there is no place for it now.
std::optional<RootId> Simulator::root_of(std::size_t tree) {
  RootIdentity identity;
  identity.tenant = tenant_name(tree);
  const Result<RootId> root = cache_->root(identity, trees_[tree].geometry);
  if (!root.ok()) {
    CHECK(root.error().code == Code::exhausted);
    return std::nullopt;
  }
  CHECK(cache_->root_key(root.value()) == trees_[tree].key);
  return root.value();
}

std::vector<TenantInfo> Simulator::holdings() const {
  std::vector<TenantInfo> all;
  for (std::size_t i = 0; i < trees_.size(); ++i) all.push_back(cache_->tenant(tenant_name(i)));
  return all;
}

// Those who did not act have what they had, or their share.
void Simulator::check_shares(const std::vector<TenantInfo>& had,
                             const std::vector<PendingItem>& acting) const {
  const std::vector<TenantInfo> have = holdings();
  for (std::size_t i = 0; i < have.size(); ++i) {
    if (std::ranges::any_of(acting, [&](const PendingItem& item) { return item.root == i; }))
      continue;
    const std::uint64_t share = std::min(had[i].share_bytes, have[i].share_bytes);
    CHECK(have[i].bytes >= std::min(had[i].bytes, share));
  }
}

// What is over a quota never grows, and all leases are listed, each for its tenant.
void Simulator::check_limits() {
  const std::vector<TenantInfo> have = holdings();
  before_.resize(have.size(), 0);
  std::size_t counted = 0;
  for (std::size_t i = 0; i < have.size(); ++i) {
    if (have[i].limits.bytes > 0)
      CHECK(have[i].bytes <= std::max(have[i].limits.bytes, before_[i]));
    before_[i] = have[i].bytes;
    const std::size_t listed = cache_->leases(tenant_name(i), {}, 1000).size();
    CHECK(listed == have[i].leases);
    counted += listed;
  }
  CHECK(counted == cache_->leases(std::nullopt, {}, 1000).size());
}

}  // namespace quire
