// What tenants lease and pin stays, and what they have keeps to their limits.
#include <algorithm>

#include "base/check.h"
#include "engine/job.h"
#include "sim/engine_world.h"

namespace quire {
namespace {

constexpr std::size_t kLeasesMax = 100'000;

}  // namespace

// Tokens of a request's prompt that the cache holds now.
std::uint32_t EngineWorld::cached_tokens(std::uint64_t ask) {
  const Request r = asks_.make(ask);
  const std::vector<KeyChange> changes = key_changes(r.kv, r.prompt);
  const Result<RootId> root =
      crowd_.runtime().tenant_root(r.kv.tenant, r.kv.storage.get(), r.kv.root_adapter());
  Result<Sequence> probe =
      crowd_.cache().open({.root = root.value(),
                           .token_capacity = static_cast<std::uint32_t>(r.prompt.size()),
                           .publish = false,
                           .changes = changes});
  CHECK(probe.ok());
  crowd_.cache().place(probe.value(), r.prompt);
  return crowd_.cache().peek(probe.value()).tokens;
}

// What is there and pinned of a prompt when its request ends must stay. Prompts with windows are left
// out: a block that had left the window may have gone before the pin came.
void EngineWorld::keep_leases(const Live& l) {
  const Request r = asks_.make(l.ask);
  const bool windows =
      opened_.model == ToyModel::windows || (r.kv.storage && r.kv.storage->window > 0);
  const bool whole = r.kv.leases.size() == 1 && r.kv.leases[0].pin && r.kv.leases[0].ttl == 0 &&
                     !r.kv.retain && !r.kv.select && !r.kv.blend && !r.kv.convert &&
                     r.kv.write != KvWrite::none && !windows;
  for (const LeaseId id : l.log->result->leases) {
    if (id == LeaseId{}) continue;  // it could not be taken
    Lease lease{id, l.ask, 0};
    if (whole)
      lease.tokens = std::min(cached_tokens(l.ask) / kToyBlock * kToyBlock,
                              crowd_.cache().lease_info(id).value().tokens);
    leases_.push_back(lease);
  }
}

void EngineWorld::check_pins() {
  for (const Lease& lease : leases_) {
    if (lease.tokens == 0) continue;
    ++report_.features["pin checked"];
    CHECK(cached_tokens(lease.ask) >= lease.tokens);
  }
}

void EngineWorld::limit_tenant() {
  check_limits();  // the old ones, up to here
  const std::uint64_t bytes = opened_.cache_bytes;
  const TenantLimits limits{
      .bytes = random_.chance(0.7) ? bytes / 10 * (1 + random_.below(8)) : 0,
      .pin_bytes = random_.chance(0.3) ? bytes / 20 * (1 + random_.below(4)) : 0,
      .leases = static_cast<std::uint32_t>(random_.below(4))};
  CHECK(crowd_.cache().set_limits(Asks::kTenants[random_.below(2)], limits).ok());
  ++report_.features["limits changed"];
}

// What is over a limit does not grow, and all leases are listed, each for its tenant.
void EngineWorld::check_limits() {
  std::size_t listed = 0;
  for (std::size_t i = 0; i < std::size(Asks::kTenants); ++i) {
    const TenantInfo has = crowd_.cache().tenant(Asks::kTenants[i]);
    const TenantInfo& before = tenants_[i];
    if (has.limits.bytes > 0) CHECK(has.bytes <= std::max(has.limits.bytes, before.bytes));
    if (has.limits.leases > 0) CHECK(has.leases <= std::max(has.limits.leases, before.leases));
    tenants_[i] = has;
    const std::size_t leases = crowd_.cache().leases(Asks::kTenants[i], {}, kLeasesMax).size();
    CHECK(leases == has.leases);
    listed += leases;
  }
  CHECK(listed == crowd_.cache().leases(std::nullopt, {}, kLeasesMax).size());
}

}  // namespace quire
