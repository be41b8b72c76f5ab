#include "kv/evict/evict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kv/planted.h"

namespace quire {

extern const EvictPolicy kEvictOdds, kEvictCost, kEvictLru, kEvictLfu, kEvictS3Fifo, kEvictPriority,
    kEvictClairvoyant;

namespace {

constexpr const EvictPolicy* kPolicies[] = {&kEvictOdds,       &kEvictCost,   &kEvictLru,
                                            &kEvictLfu,        &kEvictS3Fifo, &kEvictPriority,
                                            &kEvictClairvoyant};
constexpr std::size_t kServing = std::size(kPolicies) - 1;

Result<const EvictPolicy*> find_policy(std::span<const EvictPolicy* const> policies,
                                       std::string_view name) {
  std::string known;
  for (const EvictPolicy* p : policies) {
    if (p->name == name) return p;
    known += ' ' + std::string(p->name);
  }
  return Error{Code::not_found,
               "no eviction policy '" + std::string(name) + "'; there are:" + known};
}

}  // namespace

std::span<const EvictPolicy* const> evict_policies() {
  return std::span(kPolicies).first(kServing);
}
std::span<const EvictPolicy* const> replay_evict_policies() { return kPolicies; }

Result<const EvictPolicy*> find_evict_policy(std::string_view name) {
  return find_policy(evict_policies(), name);
}
Result<const EvictPolicy*> find_replay_evict_policy(std::string_view name) {
  return find_policy(replay_evict_policies(), name);
}

double cached_value(const EvictEntry& entry) {
  static const auto weights = [] {  // by priority
    std::array<double, 101> w;
    for (int p = 0; p <= 100; ++p)
      w[static_cast<std::size_t>(p)] = std::exp2((p - kDefaultPriority) / 10.0);
    return w;
  }();
  return static_cast<double>(std::max<Nanoseconds>(entry.recompute_ns, 1)) * (1.0 + entry.hits) *
         weights[entry.priority];
}

Evictor::Evictor(const EvictOptions& options, std::uint32_t list_count)
    : lists_(options.entries_max, list_count, LazyPages::huge), expiry_(options.entries_max) {}

void Evictor::add(EvictId id, const EvictEntry& entry) {
  const std::uint32_t i = static_cast<std::uint32_t>(id);
  CHECK(i < lists_.ids() && !lists_[i].present);
  CHECK(entry.priority <= 100);
  Node& node = lists_[i];
  const EvictEntry before = node;
  const std::uint16_t queue = node.queue;
  static_cast<EvictEntry&>(node) = entry;
  node.present = true;
  node.queue = queue;
  ++size_;
  bytes_ += entry.bytes;
  if (entry.expires > 0) expiry_.add(i, entry.expires);
  enter(i, before.key != 0 && before.key == entry.key ? &before : nullptr);
}

void Evictor::remove(EvictId id) { take_out(static_cast<std::uint32_t>(id), false); }

void Evictor::take_out(std::uint32_t i, bool evicted) {
  CHECK(i < lists_.ids() && lists_[i].present);
  if (planted(Bug::evictor_keeps_removed) && !evicted) return;
  leave(i, evicted);
  Node& entry = lists_[i];
  if (entry.expires > 0) expiry_.remove(i);
  entry.present = false;
  --size_;
  bytes_ -= entry.bytes;
  if (evicted) entry.key = 0;
}

std::optional<EvictId> Evictor::peek(Nanoseconds now) {
  if (size_ == 0) return std::nullopt;
  now_ = now;
  const std::optional<std::uint32_t> expired = expiry_.due(now);
  picked_expired_ = expired.has_value();
  return static_cast<EvictId>(expired ? *expired : choose());
}

std::optional<EvictId> Evictor::pick(Nanoseconds now) {
  const std::optional<EvictId> least = peek(now);
  if (least) take_out(static_cast<std::uint32_t>(*least), true);
  return least;
}

}  // namespace quire
