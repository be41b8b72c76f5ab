// Taking and releasing a block while a million others are cached. Goal: under 50 ns.
#include <benchmark/benchmark.h>

#include <vector>

#include "base/random.h"
#include "kv/pool.h"

namespace quire {
namespace {

constexpr std::uint32_t kCached = 1000000;

struct Full {
  Arena arena{std::move(reserve_host_memory({.bytes = std::size_t{4} << 30}).value()),
              {.budget_bytes = std::uint64_t{1} << 30, .poison = false}};
  BlockPool pool{arena, {.blocks_max = 1u << 21}};
  SizeClass c = arena.size_class(512);
  std::vector<CachedBlock> cached;
  Full() {
    for (std::uint32_t i = 0; i < kCached; ++i) {
      BlockRef b = pool.take(c);
      cached.push_back(pool.cache(b.id()));
    }
  }
};

void take_release(benchmark::State& state) {
  Full f;
  for (auto _ : state) {
    BlockRef b = f.pool.take(f.c);
    benchmark::DoNotOptimize(b);
  }
}
BENCHMARK(take_release);

// As a server does it: what goes is not what just came. A reader of a random cached block, evicted
// and taken again.
void evict_take_random(benchmark::State& state) {
  Full f;
  Random random(1);
  for (auto _ : state) {
    CachedBlock& at = f.cached[random.below(kCached)];
    at = {};
    BlockRef b = f.pool.take(f.c);
    at = f.pool.cache(b.id());
  }
}
BENCHMARK(evict_take_random);

void share_release_random(benchmark::State& state) {
  Full f;
  Random random(1);
  for (auto _ : state) {
    BlockRef b = f.cached[random.below(kCached)].share();
    benchmark::DoNotOptimize(b);
  }
}
BENCHMARK(share_release_random);

// A slab of sixteen blocks of 256 KiB is emptied into others and filled again: bytes per second
// moved.
void move_block(benchmark::State& state) {
  Arena arena(std::move(reserve_host_memory({.bytes = std::size_t{4} << 30}).value()),
              {.budget_bytes = std::uint64_t{64} << 20, .poison = false});
  BlockPool pool(arena, {.blocks_max = 1000});
  const SizeClass c = arena.size_class(256 << 10);
  std::vector<BlockRef> held;
  for (int i = 0; i < 60; ++i) {
    held.push_back(pool.take(c));
    arena.memory().fill(static_cast<std::size_t>(held.back().offset()) * kArenaUnit, 256 << 10,
                        std::byte{1});
  }
  std::size_t i = 0;
  for (auto _ : state) {
    const BlockId id = held[i++ % held.size()].id();
    if (!pool.move(id)) state.SkipWithError("no room to move to");
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * (256 << 10));
}
BENCHMARK(move_block);

}  // namespace
}  // namespace quire
