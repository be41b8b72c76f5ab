// Nothing that runs per token, block or eviction allocates: counted by replacing operator new.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "base/random.h"
#include "kv/evict/evict.h"
#include "kv/evict/ghost.h"
#include "kv/journal.h"
#include "kv/pool.h"

namespace {
std::uint64_t allocations = 0;
}

void* operator new(std::size_t size) {
  ++allocations;
  if (void* at = std::malloc(size)) return at;
  throw std::bad_alloc();
}
void operator delete(void* at) noexcept { std::free(at); }
void operator delete(void* at, std::size_t) noexcept { std::free(at); }

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

}  // namespace
}  // namespace quire
