// Evicting at a million entries, every policy. Goal: under 200 ns.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "base/random.h"
#include "kv/evict/evict.h"
#include "kv/evict/ghost.h"

namespace quire {
namespace {

constexpr std::uint32_t kEntries = 1000000;

EvictEntry entry(Random& random, Nanoseconds now) {
  return {.key = random.next(),
          .bytes = 737280u << random.below(2),
          .last_use = now,
          .recompute_ns = 1000000 + static_cast<Nanoseconds>(random.below(1000000)),
          .expires = random.chance(0.05) ? now + 1000000000 : 0,
          .hits = static_cast<std::uint32_t>(random.below(4) * random.below(4)),
          .priority = static_cast<std::uint8_t>(random.chance(0.9) ? 50 : random.below(101))};
}

struct Million {
  explicit Million(const EvictPolicy* policy) : evictor(policy->make({.entries_max = kEntries})) {
    std::vector<std::uint32_t> ids(kEntries);
    for (std::uint32_t i = 0; i < kEntries; ++i) ids[i] = i;
    for (std::uint32_t i = kEntries - 1; i > 0; --i) std::swap(ids[i], ids[random.below(i + 1)]);
    for (const std::uint32_t i : ids)
      evictor->add(static_cast<EvictId>(i), entry(random, now += 1000));
  }
  Random random{7};
  Nanoseconds now = 0;
  std::unique_ptr<Evictor> evictor;
};

// One leaves, one comes; entries are prepared beforehand.
void evict_and_add(benchmark::State& state, const EvictPolicy* policy) {
  Million m(policy);
  std::vector<EvictEntry> fresh(1 << 16);
  std::size_t i = 0;
  for (EvictEntry& e : fresh) e = entry(m.random, 0);
  for (auto _ : state) {
    EvictEntry& e = fresh[i++ % fresh.size()];
    e.last_use = m.now += 1000;
    m.evictor->add(*m.evictor->pick(m.now), e);
  }
}

// A hit on a random entry: used, then idle again.
void reuse(benchmark::State& state, const EvictPolicy* policy) {
  Million m(policy);
  for (auto _ : state) {
    const EvictId id = static_cast<EvictId>(m.random.below(kEntries));
    EvictEntry e = m.evictor->entry(id);
    m.evictor->remove(id);
    ++e.hits;
    e.last_use = m.now += 1000;
    m.evictor->add(id, e);
  }
}

// A million leave in a row.
void evict_all(benchmark::State& state, const EvictPolicy* policy) {
  for (auto _ : state) {
    state.PauseTiming();
    auto m = std::make_unique<Million>(policy);
    state.ResumeTiming();
    while (m->evictor->pick(m->now)) {
    }
    state.PauseTiming();
    m.reset();
    state.ResumeTiming();
  }
  state.counters["per_eviction"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kEntries,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void ghost(benchmark::State& state) {
  GhostTable ghosts(1 << 16);
  Random random(3);
  for (auto _ : state) {
    ghosts.add(random.next() % 200000, 737280, Reason::evicted_capacity, 0);
    benchmark::DoNotOptimize(ghosts.miss(random.next() % 200000, 32, 1 << 30));
  }
}

const bool kRegistered = [] {
  for (const EvictPolicy* p : evict_policies()) {
    const std::string name(p->name);
    benchmark::RegisterBenchmark(("evict_and_add/" + name).c_str(), evict_and_add, p);
    benchmark::RegisterBenchmark(("reuse/" + name).c_str(), reuse, p);
    benchmark::RegisterBenchmark(("evict_all/" + name).c_str(), evict_all, p)
        ->Iterations(3)
        ->Unit(benchmark::kMillisecond);
  }
  return true;
}();
BENCHMARK(ghost)->Name("ghost_add_and_miss");

}  // namespace
}  // namespace quire
