#include "kv/tenants.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {

Result<TenantSlot> Tenants::intern(std::string_view name) {
  if (const auto known = by_name_.find(std::string(name)); known != by_name_.end())
    return known->second;
  if (free_.empty()) {
    if (all_.size() >= tenants_max_)
      return Error{Code::exhausted,
                   fmt::format("{} tenants have something here; ask again later", all_.size())};
    free_.push_back(static_cast<std::uint32_t>(all_.size()));
    all_.push_back({});
  }
  const TenantSlot slot{free_.back()};
  free_.pop_back();
  of(slot).name = name;
  of(slot).live = true;
  by_name_.emplace(name, slot);
  return slot;
}

const Tenants::Tenant* Tenants::find(std::string_view name) const {
  const auto known = by_name_.find(std::string(name));
  return known == by_name_.end() ? nullptr : &at(known->second);
}

Status Tenants::set_limits(std::string_view name, const TenantLimits& limits) {
  if (find(name) == nullptr && limits == TenantLimits{}) return {};
  TRY(const TenantSlot slot, intern(name));
  of(slot).limits = limits;
  forget_if_unused(slot);
  return {};
}

void Tenants::forget_if_unused(TenantSlot slot) {
  Tenant& t = of(slot);
  if (t.roots > 0 || !(t.limits == TenantLimits{})) return;
  CHECK(t.users == 0 && t.bytes == 0 && t.leases == 0);
  by_name_.erase(t.name);
  t = {};
  free_.push_back(static_cast<std::uint32_t>(slot));
}

std::uint64_t Tenants::share(const Tenant& t) const {
  const std::uint64_t quota = t.limits.bytes;
  return quota > 0 ? std::min(quota, even_) : even_;
}

// All get the same, but for those that have pinned more than that.
void Tenants::divide() {
  for (std::uint64_t level = budget_ / std::max(active_, 1u);;) {
    even_ = level;
    std::uint64_t left = budget_;
    std::uint32_t others = active_;
    for (const Tenant& t : all_) {
      if (!t.active || t.pinned_bytes <= even_) continue;
      left -= std::min(left, t.pinned_bytes);
      --others;
    }
    level = left / std::max(others, 1u);
    if (level >= even_) return;
  }
}

std::uint64_t Tenants::excess(TenantSlot slot) const {
  const std::uint64_t safe = share(at(slot)), has = at(slot).bytes;
  return has > safe ? has - safe : 0;
}

std::uint64_t Tenants::sheltered(TenantSlot from) const {
  std::uint64_t sum = 0;
  for (std::uint32_t i = 0; active_ > 1 && i < all_.size(); ++i) {
    const TenantSlot t{i};
    if (t != from) sum += at(t).idle_bytes - std::min(at(t).idle_bytes, excess(t));
  }
  return sum;
}

void Tenants::update(Tenant& t) {
  const bool now = t.bytes > 0 || t.users > 0;
  if (now == t.active) return;
  t.active = now;
  now ? ++active_ : --active_;
  divide();
}

void Tenants::add_pinned(TenantSlot t, std::uint64_t bytes) {
  of(t).pinned_bytes += bytes;
  if (of(t).pinned_bytes > even_) divide();
}
void Tenants::remove_pinned(TenantSlot t, std::uint64_t bytes) {
  const bool counted = of(t).pinned_bytes > even_;
  of(t).pinned_bytes -= bytes;
  if (counted) divide();
}

void Tenants::remove_root(TenantSlot t) {
  CHECK(of(t).roots > 0);
  --of(t).roots;
  forget_if_unused(t);
}
void Tenants::add_user(TenantSlot t) {
  ++of(t).users;
  update(of(t));
}
void Tenants::remove_user(TenantSlot t) {
  --of(t).users;
  update(of(t));
}
void Tenants::add_bytes(TenantSlot t, std::uint64_t bytes) {
  of(t).bytes += bytes;
  update(of(t));
}
void Tenants::remove_bytes(TenantSlot t, std::uint64_t bytes) {
  of(t).bytes -= bytes;
  update(of(t));
}

void Tenants::shelve(TenantSlot slot, Shelf shelf, std::uint32_t block, bool at_front) {
  Tenant& t = of(slot);
  if (shelf >= t.shelves.size()) t.shelves.resize(shelf + 1);
  Tenant::Ends& ends = t.shelves[shelf];
  PlainLink& link = links_[block];
  link.next = at_front ? ends.first : kNoBlock;
  link.previous = at_front ? kNoBlock : ends.last;
  (link.next == kNoBlock ? ends.last : links_[link.next].previous) = block;
  (link.previous == kNoBlock ? ends.first : links_[link.previous].next) = block;
}

void Tenants::unshelve(TenantSlot slot, Shelf shelf, std::uint32_t block) {
  Tenant::Ends& ends = of(slot).shelves[shelf];
  const PlainLink link = links_[block];
  (link.next == kNoBlock ? ends.last : links_[link.next].previous) = link.previous;
  (link.previous == kNoBlock ? ends.first : links_[link.previous].next) = link.next;
}

}  // namespace quire
