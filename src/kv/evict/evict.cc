#include "kv/evict/evict.h"

#include <cmath>
#include <string>

namespace quire {

extern const EvictPolicy kEvictCost, kEvictLru, kEvictLfu, kEvictS3Fifo, kEvictPriority;

namespace {
constexpr const EvictPolicy* kPolicies[] = {&kEvictCost, &kEvictLru, &kEvictLfu, &kEvictS3Fifo,
                                            &kEvictPriority};
}

std::span<const EvictPolicy* const> evict_policies() { return kPolicies; }

Result<const EvictPolicy*> find_evict_policy(std::string_view name) {
  std::string known;
  for (const EvictPolicy* p : kPolicies) {
    if (p->name == name) return p;
    known += ' ' + std::string(p->name);
  }
  return Error{Code::not_found,
               "no eviction policy '" + std::string(name) + "'; there are:" + known};
}

double cached_value(const EvictEntry& entry) {
  const double saved =
      static_cast<double>(std::max<Nanoseconds>(entry.recompute_ns, 1)) * (1.0 + entry.hits);
  return saved * std::exp2((static_cast<int>(entry.priority) - kDefaultPriority) / 10.0);
}

Evictor::Evictor(const EvictOptions& options)
    : entries_(options.entries_max), present_(options.entries_max), expiry_(options.entries_max) {}

void Evictor::add(EvictId id, const EvictEntry& entry) {
  const std::uint32_t i = static_cast<std::uint32_t>(id);
  CHECK(i < entries_.size() && !present_[i]);
  CHECK(entry.priority <= 100);
  present_[i] = 1;
  entries_[i] = entry;
  ++size_;
  bytes_ += entry.bytes;
  if (entry.expires > 0) expiry_.add(i, entry.expires);
  enter(i);
}

void Evictor::remove(EvictId id) { take_out(static_cast<std::uint32_t>(id), false); }

void Evictor::take_out(std::uint32_t i, bool evicted) {
  CHECK(i < entries_.size() && present_[i]);
  leave(i, evicted);
  if (entries_[i].expires > 0) expiry_.remove(i);
  present_[i] = 0;
  --size_;
  bytes_ -= entries_[i].bytes;
}

std::optional<EvictId> Evictor::pick(Nanoseconds now) {
  if (size_ == 0) return std::nullopt;
  now_ = now;
  const std::optional<std::uint32_t> expired = expiry_.due(now);
  const std::uint32_t i = expired ? *expired : choose();
  picked_expired_ = expired.has_value();
  take_out(i, true);
  return static_cast<EvictId>(i);
}

}  // namespace quire
