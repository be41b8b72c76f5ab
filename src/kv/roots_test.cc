// Roots, layouts and sizes of blocks are bounded, and those that nobody uses make way.
#include <algorithm>

#include "kv/cache_testing.h"
#include "kv/core.h"

namespace quire {
namespace {

class RootsTest : public CacheTest {
 protected:
  void start_small(CacheOptions o) { start({toy_group(GroupKind::full, 1, 2)}, 1 << 20, o); }

  // A geometry that differs from all others in its window, or in the size of its blocks.
  Geometry windowed(std::uint32_t window) {
    return toy_geometry({toy_group(GroupKind::window, 1, 2, window)}, kBlock);
  }
  Geometry wide(std::uint32_t layers) {
    return toy_geometry({toy_group(GroupKind::full, layers, 32)}, kBlock);
  }
  Result<RootId> of(const std::string& tenant, const Geometry& g) {
    RootIdentity id;
    id.tenant = tenant;
    return cache->root(id, g);
  }
  // Leaves something cached.
  void fill(RootId id, const Geometry& g) {
    Sequence s = std::move(cache->open({.root = id, .token_capacity = 64}).value());
    geometry = g;
    cache->attach(s, tokens_from(1, 2 * kBlock));
    prefill(s);
    clock.advance(1000);
  }
};

TEST_F(RootsTest, WhatNobodyUsesMakesWay) {
  start_small({.roots_max = 8, .tenant_roots_max = 8});
  for (std::uint32_t i = 1; i <= 1000; ++i) {
    const Result<RootId> made = of("t", windowed(i));
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(cache->geometry(made.value()).groups[0].window, i);
  }
  EXPECT_FALSE(cache->alive(root));
}

TEST_F(RootsTest, CachedRootsMakeWayLast) {
  start_small({.roots_max = 4, .tenant_roots_max = 4});
  const Geometry first = windowed(200);
  const RootId kept = of("t", first).value();
  fill(kept, first);
  for (std::uint32_t i = 1; i <= 100; ++i) ASSERT_TRUE(of("t", windowed(i)).ok());
  EXPECT_TRUE(cache->alive(kept));
  for (std::uint32_t i = 1; i <= 100; ++i) {
    const Geometry g = windowed(i);
    fill(of("t", g).value(), g);
    cache->check();
  }
  EXPECT_FALSE(cache->alive(kept));
}

TEST_F(RootsTest, AnIdThatOutlivedItsRootNamesNothing) {
  start_small({.roots_max = 1, .tenant_roots_max = 1});
  const RootId other = of("u", windowed(9)).value();
  EXPECT_NE(root, other);
  EXPECT_FALSE(cache->alive(root));
  EXPECT_FALSE(cache->open({.root = root, .token_capacity = 8}).ok());
  EXPECT_EQ(cache->lookup(root, tokens_from(1, 8), {}).tokens, 0u);
  EXPECT_EQ(cache->cached_bytes(root), 0u);
}

TEST_F(RootsTest, WhatIsUsedHeldOrLeasedStays) {
  start_small({.roots_max = 3, .tenant_roots_max = 3});
  Sequence s = open();  // uses `root`
  const Geometry g = windowed(7), h = windowed(8);
  const RootHold hold(*cache, of("t", g).value());
  const RootId leased = of("t", h).value();
  {
    geometry = h;
    Sequence kept = std::move(cache->open({.root = leased, .token_capacity = 64}).value());
    cache->attach(kept, tokens_from(1, 2 * kBlock));
    prefill(kept);
    ASSERT_TRUE(cache->lease(kept, {}).ok());
  }
  const Result<RootId> none = of("u", windowed(9));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::exhausted);
  EXPECT_TRUE(cache->alive(root) && cache->alive(leased));
  s.close();
  EXPECT_TRUE(of("u", windowed(9)).ok());
  EXPECT_FALSE(cache->alive(root));
}

TEST_F(RootsTest, ARootInAStepThatRunsStays) {
  start_small({.roots_max = 1, .tenant_roots_max = 1});
  Sequence s = open();
  cache->attach(s, tokens_from(1, 6));
  const StepNeed need{&s, 6};
  {
    Result<Reservation> running = cache->reserve({&need, 1});
    ASSERT_TRUE(running.ok());
    s.close();
    EXPECT_FALSE(of("u", windowed(9)).ok());
  }
  EXPECT_TRUE(of("u", windowed(9)).ok());
}

TEST_F(RootsTest, ATenantMakesDoWithItsOwn) {
  start_small({.roots_max = 64, .tenant_roots_max = 4});
  const Geometry g = windowed(100);
  const RootId modest = of("modest", g).value();
  for (std::uint32_t i = 1; i < 100; ++i) {
    const Geometry other = windowed(i);
    fill(of("greedy", other).value(), other);
  }
  EXPECT_TRUE(cache->alive(modest) && cache->alive(root));
}

TEST_F(RootsTest, LayoutsAndSizesOfBlocksMakeWay) {
  start_small({.tenant_roots_max = 4096, .layouts_max = 4, .size_classes_max = 6});
  for (std::uint32_t i = 1; i <= 40; ++i) {
    const Geometry g = wide(i % 20 + 1);
    const Result<RootId> made = of("t", g);
    ASSERT_TRUE(made.ok()) << made.error().message;
    fill(made.value(), g);
    cache->check();
  }
}

TEST_F(RootsTest, NoPlaceIsAnErrorAndTheOthersGoOn) {
  start_small({.layouts_max = 1});
  Sequence s = open();
  for (const std::uint32_t i : {1u, 2u}) {
    const Result<RootId> none = of("u", windowed(i));
    ASSERT_FALSE(none.ok());
    EXPECT_EQ(none.error().code, Code::exhausted);
  }
  EXPECT_TRUE(of("u", geometry).ok());  // storage that is there already
  cache->attach(s, tokens_from(1, 9));
  prefill(s);
  expect_rows(s);
}

TEST_F(RootsTest, AFullIndexMakesRoomForARoot) {
  CacheOptions o{.tokens_per_block = kBlock, .node_capacity = 3};
  o.budget_bytes = 1 << 20;
  cache = std::make_unique<KvCache>(o, toy_memory(4 << 20), clock);
  root = cache->root(identity(), geometry).value();
  Sequence s = run(tokens_from(1, 2 * kBlock));
  EXPECT_EQ(cache->stats().nodes, 2u);
  EXPECT_FALSE(of("u", geometry).ok());  // all is in use
  s.close();
  EXPECT_TRUE(of("u", geometry).ok());
}

TEST_F(RootsTest, LookingMakesNothing) {
  RootIdentity id = identity();
  EXPECT_EQ(cache->find_root(id, geometry), root);
  id.tenant = "u";
  EXPECT_FALSE(cache->find_root(id, geometry));
  EXPECT_FALSE(cache->find_root(identity(), windowed(3)));
  EXPECT_EQ(cache->core().roots.size(), 1u);
  EXPECT_EQ(cache->core().layouts.size(), 1u);
}

TEST_F(RootsTest, GeometriesAreNeverMistakenForEachOther) {
  start_small({.roots_max = 1, .tenant_roots_max = 1});
  std::vector<std::uint64_t> serials;
  for (std::uint32_t i = 1; i <= 50; ++i)
    serials.push_back(cache->geometry_serial(of("t", windowed(i % 3 + 1)).value()));
  std::ranges::sort(serials);
  EXPECT_EQ(std::ranges::adjacent_find(serials), serials.end());
  EXPECT_GT(serials.front(), 0u);
}

}  // namespace
}  // namespace quire
