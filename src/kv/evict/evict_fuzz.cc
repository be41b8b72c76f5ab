// Every policy against a plain list: same members, expired ones first, and for lru, lfu and
// priority the very entry that sorting would name (few distinct times, so that the order is exact).
#include <algorithm>
#include <vector>

#include "kv/evict/evict.h"

using namespace quire;

namespace {
constexpr std::uint32_t kIds = 24;
constexpr Nanoseconds kTick = 1 << 20;

struct Held {
  std::uint32_t id;
  EvictEntry entry;
};

bool before(std::string_view policy, const EvictEntry& a, const EvictEntry& b) {
  if (policy == "lfu" && a.hits != b.hits) return a.hits < b.hits;
  if (policy == "priority" && a.priority != b.priority) return a.priority < b.priority;
  return a.last_use < b.last_use;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const EvictPolicy& policy = *evict_policies()[data[0] % evict_policies().size()];
  const bool sorted = policy.name == "lru" || policy.name == "lfu" || policy.name == "priority";
  const std::unique_ptr<Evictor> evictor = policy.make({.entries_max = kIds});
  std::vector<Held> model;
  Nanoseconds now = 1;
  std::uint64_t key = 1;
  for (std::size_t i = 1; i + 3 < size; i += 4) {
    const std::uint8_t op = data[i], a = data[i + 1], b = data[i + 2], c = data[i + 3];
    const std::uint32_t id = a % kIds;
    const auto at =
        std::find_if(model.begin(), model.end(), [&](const Held& h) { return h.id == id; });
    if (op < 150) {
      if (at != model.end()) {
        evictor->remove(static_cast<EvictId>(id));
        model.erase(at);
      } else {
        EvictEntry e{.key = a & 64 ? id + 1 : ++key * 1000,
                     .bytes = 1u + b % 16,
                     .last_use = now,
                     .recompute_ns = c,
                     .expires = c % 8 == 0 ? now + (1 + b) * kTick : 0,
                     .hits = b % 5u,
                     .priority = static_cast<std::uint8_t>(c % 101)};
        evictor->add(static_cast<EvictId>(id), e);
        model.push_back({id, e});
      }
    } else if (op < 220) {
      const std::optional<EvictId> picked = evictor->pick(now);
      CHECK(picked.has_value() == !model.empty());
      if (picked) {
        const auto victim = std::find_if(model.begin(), model.end(), [&](const Held& h) {
          return h.id == static_cast<std::uint32_t>(*picked);
        });
        CHECK(victim != model.end());
        const auto lapsed = [&](const Held& h, Nanoseconds slack) {
          return h.entry.expires > 0 && h.entry.expires + slack <= now;
        };
        if (std::any_of(model.begin(), model.end(),
                        [&](const Held& h) { return lapsed(h, kTick); }))
          CHECK(evictor->picked_expired());
        CHECK(!evictor->picked_expired() || lapsed(*victim, 0));
        if (sorted && !evictor->picked_expired())
          for (const Held& h : model) CHECK(!before(policy.name, h.entry, victim->entry));
        model.erase(victim);
      }
    } else {
      now += op < 250 ? 1 : a * kTick;
    }
    std::uint64_t bytes = 0;
    for (const Held& h : model) {
      bytes += h.entry.bytes;
      CHECK(evictor->contains(static_cast<EvictId>(h.id)));
    }
    CHECK(evictor->size() == model.size() && evictor->bytes() == bytes);
  }
  return 0;
}
