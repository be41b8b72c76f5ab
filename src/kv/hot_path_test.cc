// Nothing that runs per token, block or eviction allocates: counted by replacing operator new.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "base/random.h"
#include "kv/cache.h"
#include "kv/evict/evict.h"
#include "kv/evict/ghost.h"
#include "kv/journal.h"
#include "kv/pool.h"
#include "kv/test_model.h"

namespace {
std::uint64_t allocations = 0;
}

[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* at) noexcept { std::free(at); }
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept { std::free(at); }

namespace quire {
namespace {

TEST(HotPath, BlocksSlabsAndMovesAllocateNothing) {
  Arena arena(std::move(reserve_host_memory({.bytes = 64 << 20, .page_bytes = 65536}).value()),
              {.budget_bytes = 1 << 20, .poison = false});
  BlockPool pool(arena, {.blocks_max = 4096});
  const SizeClass classes[] = {arena.size_class(1024), arena.size_class(20000)};
  (void)pool.take(classes[1]);  // the pool has seen every class
  BlockRef held[200];
  CachedBlock cached[200];
  Random random(1);
  const std::uint64_t before = allocations;
  for (int n = 0; n < 100000; ++n) {
    const std::size_t i = random.below(200);
    switch (random.below(6)) {
      case 0:
        held[i] = pool.take(classes[random.below(2)]);
        break;
      case 1:
        if (!held[i].empty() && !pool.cached(held[i].id())) cached[i] = pool.cache(held[i].id());
        break;
      case 2:
        held[i] = {};
        break;
      case 3:
        cached[i] = {};
        break;
      case 4:
        if (!cached[i].empty()) held[i] = cached[i].share();
        break;
      case 5:
        if (!held[i].empty()) (void)pool.move(held[i].id());
        break;
    }
  }
  EXPECT_EQ(allocations, before);
  EXPECT_GT(arena.stats().slabs_returned, 0u);  // slabs came and went
}

TEST(HotPath, EvictingRememberingAndNotingAllocateNothing) {
  GhostTable ghosts(1000);
  Journal journal(1000);
  for (const EvictPolicy* policy : evict_policies()) {
    const std::unique_ptr<Evictor> evictor = policy->make({.entries_max = 5000});
    Random random(1);
    const std::uint64_t before = allocations;
    for (std::uint32_t n = 1; n < 50000; ++n) {
      const auto id = static_cast<EvictId>(random.below(5000));
      if (evictor->contains(id)) {
        evictor->remove(id);
        continue;
      }
      evictor->add(id, {.key = random.next(),
                        .bytes = 1 + random.below(9),
                        .last_use = n,
                        .recompute_ns = 1 << random.below(20),
                        .expires = random.chance(0.1) ? n * 1000000ll : 0,
                        .hits = static_cast<std::uint32_t>(random.below(4))});
      if (evictor->size() < 1000) continue;
      const EvictId out = *evictor->pick(n * 10000ll);
      ghosts.add(evictor->entry(out).last_use, 1, Reason::evicted_capacity, n);
      ghosts.miss(random.below(n), 1, 1000);
      journal.add({.time = n, .reason = Reason::evicted_capacity});
    }
    EXPECT_EQ(allocations, before) << policy->name;
  }
}

// The whole cache, under pressure: requests come, hit, are stepped, copied on write, evicted for,
// and go.
TEST(HotPath, AStepOfTheCacheAllocatesNothing) {
  ManualClock clock;
  CacheOptions o;
  o.budget_bytes = 64 * 4096;
  o.tokens_per_block = 4;
  o.node_capacity = 4096;
  KvCache cache(o, toy_memory(4 * o.budget_bytes), clock);
  const Geometry geometry =
      toy_geometry({toy_group(GroupKind::full, 1, 2), toy_group(GroupKind::window, 1, 1, 9)}, 4);
  const RootId root = cache.root(RootIdentity{}, geometry).value();
  Random random(4);
  std::vector<TokenId> prompt(90);
  std::uint64_t counted = 0;
  for (int n = 0; n < 3000; ++n) {
    prompt.resize(20 + random.below(60));
    for (TokenId& t : prompt) t = static_cast<TokenId>(random.below(2));
    Sequence s = std::move(cache.open({.root = root, .token_capacity = 128}).value());
    const std::uint64_t before = allocations;
    cache.attach(s, prompt);
    while (s.length() < prompt.size() + 8) {
      const bool reading = s.length() < prompt.size();
      const std::uint32_t count =
          reading ? static_cast<std::uint32_t>(prompt.size()) - s.length() : 1;
      const StepNeed need{&s, count};
      Result<Reservation> step = cache.reserve({&need, 1});
      ASSERT_TRUE(step.ok());
      const TokenId next = 1;
      if (reading)
        step.value().commit(0, count);
      else
        step.value().commit(0, std::span(&next, 1));
    }
    s.close();
    if (n > 100) counted += allocations - before;  // scratch has grown to its size
  }
  EXPECT_GT(cache.stats().evicted_blocks, 1000u);
  EXPECT_GT(cache.stats().blocks_copied, 100u);
  EXPECT_EQ(counted, 0u);
}

}  // namespace
}  // namespace quire
