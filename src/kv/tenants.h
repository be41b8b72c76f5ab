// kv/tenants.h - who owns what is cached, and how much of it is safe from the others.
//
// A tenant's share is the budget divided by the tenants that have or use anything, or its quota if
// that is less. Bytes that somebody pinned beyond its share are taken off the budget before it is
// divided. A tenant that has more than its share makes room with its own blocks; one that has less
// takes from those that have more. So a tenant never loses a block to another one while it has no
// more than its share. Blocks that may leave lie on shelves of their tenant, the least recently used
// in front. PrefixStore keeps all this up to date. Engine thread only.
//
//   TRY(const TenantSlot t, tenants.intern("acme"));
//   tenants.add_bytes(t, block_bytes);
//   tenants.shelve(t, shelf, block, /*front=*/false);
//   if (tenants.excess(t) > 0) leaves = tenants.front(t, shelf);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "kv/evict/list.h"
#include "kv/lazy_array.h"

namespace quire {

enum class TenantSlot : std::uint32_t {};
inline constexpr TenantSlot kNoTenant{UINT32_MAX};  // not for any tenant: nothing is safe from it

// What an administrator allows a tenant. 0: what everybody may.
struct TenantLimits {
  std::uint64_t bytes = 0;      // in the index, in use or not
  std::uint64_t pin_bytes = 0;  // of these, pinned
  std::uint32_t leases = 0;     // pins and leases

  bool operator==(const TenantLimits&) const = default;
};

class Tenants {
 public:
  static constexpr std::uint32_t kNoBlock = UINT32_MAX;
  using Shelf = std::uint32_t;
  static constexpr Shelf kLeased = 0;  // the others: SizeClass + 1

  struct Tenant {
    std::string name;
    TenantLimits limits;
    std::uint64_t bytes = 0, idle_bytes = 0, pinned_bytes = 0;
    std::uint32_t roots = 0, users = 0, leases = 0;  // users: open sequences
    bool live = false, active = false;
    struct Ends {
      std::uint32_t first = kNoBlock, last = kNoBlock;
    };
    std::vector<Ends> shelves;
  };

  Tenants(std::uint32_t tenants_max, std::uint32_t blocks_max)
      : tenants_max_(tenants_max), links_(blocks_max) {}

  Result<TenantSlot> intern(std::string_view name);
  const Tenant* find(std::string_view name) const;
  const Tenant& at(TenantSlot t) const { return all_[static_cast<std::size_t>(t)]; }
  std::size_t size() const { return all_.size(); }  // slots; some may not be live
  Status set_limits(std::string_view name, const TenantLimits& limits);

  void set_budget(std::uint64_t bytes) {
    budget_ = bytes;
    divide();
  }
  std::uint32_t active() const { return active_; }
  std::uint64_t share(const Tenant& t) const;
  std::uint64_t excess(TenantSlot t) const;  // bytes beyond its share
  // Idle bytes of others that are safe from this one.
  std::uint64_t sheltered(TenantSlot from) const;

  // Counts. A tenant without roots and limits of its own is forgotten.
  void forget_if_unused(TenantSlot t);
  void add_root(TenantSlot t) { ++of(t).roots; }
  void remove_root(TenantSlot t);
  void add_user(TenantSlot t);
  void remove_user(TenantSlot t);
  void add_lease(TenantSlot t) { ++of(t).leases; }
  void remove_lease(TenantSlot t) { --of(t).leases; }
  void add_bytes(TenantSlot t, std::uint64_t bytes);
  void remove_bytes(TenantSlot t, std::uint64_t bytes);
  void add_idle(TenantSlot t, std::uint64_t bytes) { of(t).idle_bytes += bytes; }
  void remove_idle(TenantSlot t, std::uint64_t bytes) { of(t).idle_bytes -= bytes; }
  void add_pinned(TenantSlot t, std::uint64_t bytes);
  void remove_pinned(TenantSlot t, std::uint64_t bytes);

  // Shelves.
  void shelve(TenantSlot t, Shelf shelf, std::uint32_t block, bool front);
  void unshelve(TenantSlot t, Shelf shelf, std::uint32_t block);
  std::uint32_t front(TenantSlot t, Shelf shelf) const {
    return shelf < at(t).shelves.size() ? at(t).shelves[shelf].first : kNoBlock;
  }

 private:
  Tenant& of(TenantSlot t) { return all_[static_cast<std::size_t>(t)]; }
  void update(Tenant& t);  // whether it is active
  void divide();           // the budget

  std::uint32_t tenants_max_;
  std::uint64_t budget_ = 0, even_ = 0;  // share of one without a quota
  std::uint32_t active_ = 0;
  std::vector<Tenant> all_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::string, TenantSlot> by_name_;
  LazyArray<PlainLink> links_;  // by block; of one shelf each
};

}  // namespace quire
