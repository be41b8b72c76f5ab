#include "kv/cache_testing.h"

namespace quire {
namespace {

using CacheMemoryTest = CacheTest;

TEST_F(CacheMemoryTest, EvictionTakesLeavesOfIdleSequencesFirst) {
  start({toy_group(GroupKind::full, 1, 2)}, 8 * 4096);
  std::uint32_t served = 0;
  Sequence kept = run(tokens_from(1, 40));
  for (int i = 0; i < 200; ++i) {
    Sequence s = run(tokens_from(static_cast<TokenId>(1000 + 100 * i), 40));
    expect_rows(s);
    cache->check();
    served += cache->stats().evicted_blocks > 0;
  }
  EXPECT_GT(served, 0u);
  expect_rows(kept);
  EXPECT_GT(cache->stats().ghost_hits[0] + cache->journal().count(Reason::evicted_capacity), 0u);
}

TEST_F(CacheMemoryTest, ReserveThatCannotFitChangesNothing) {
  start({toy_group(GroupKind::full, 1, 2)}, 4 * 4096);
  Sequence a = run(tokens_from(1, 40));
  Sequence b = open({.token_capacity = 4096});
  cache->attach(b, tokens_from(5000, 4000));
  const CacheStats before = cache->stats();
  const StepNeed need{&b, 4000};
  Result<Reservation> r = cache->reserve({&need, 1});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().code, Code::exhausted);
  EXPECT_EQ(cache->stats().referenced_blocks, before.referenced_blocks);
  expect_rows(a);
}

TEST_F(CacheMemoryTest, LeasesAndPinsKeepBlocks) {
  start({toy_group(GroupKind::full, 1, 2)}, 8 * 4096);
  Sequence a = run(tokens_from(1, 17)), b = run(tokens_from(500, 17));
  const LeaseId pin = cache->lease(a, {.pin = true}).value();
  const LeaseId lease = cache->lease(b, {.ttl = 1'000'000'000, .priority = 90}).value();
  EXPECT_EQ(cache->lease_info(pin).value().tokens, 16u);
  a.close();
  b.close();
  const auto churn = [&] {
    for (int i = 0; i < 100; ++i)
      run(tokens_from(static_cast<TokenId>(10000 + 100 * i), 33)).close();
  };
  churn();
  const auto cached = [&](TokenId first) {
    Sequence s = open();
    cache->place(s, tokens_from(first, 17));
    return cache->peek(s).tokens;
  };
  EXPECT_EQ(cached(1), 16u);
  EXPECT_EQ(cached(500), 16u);
  clock.advance(2'000'000'000);
  churn();
  EXPECT_EQ(cached(1), 16u);
  EXPECT_EQ(cached(500), 0u);
  EXPECT_FALSE(cache->lease_info(lease).ok());
  EXPECT_TRUE(cache->release(pin).ok());
  churn();
  EXPECT_EQ(cached(1), 0u);
}

TEST_F(CacheMemoryTest, PinBudgetIsKept) {
  CacheOptions o;
  o.pin_budget = 0.01;
  start({toy_group(GroupKind::full, 1, 2)}, 8 * 4096, o);
  Sequence a = run(tokens_from(1, 17));
  const Result<LeaseId> pin = cache->lease(a, {.pin = true});
  ASSERT_FALSE(pin.ok());
  EXPECT_EQ(pin.error().code, Code::exhausted);
}

TEST_F(CacheMemoryTest, ClearAndEvictLeaveWhatIsInUse) {
  Sequence a = run(tokens_from(1, 17));
  run(tokens_from(500, 17)).close();
  std::vector<BlockKey> keys;
  cache->tree([&](const NodeInfo& n) {
    if (n.depth_tokens == 4) keys.push_back(n.key);
  });
  ASSERT_EQ(keys.size(), 2u);
  Evicted sum;
  for (const BlockKey& k : keys) {
    const Evicted e = cache->evict(k).value();
    sum.blocks += e.blocks;
    sum.in_use += e.in_use;
  }
  EXPECT_EQ(sum.blocks, 4u);
  EXPECT_EQ(sum.in_use, 4u);
  a.close();
  EXPECT_EQ(cache->clear().blocks, 4u);
  EXPECT_EQ(cache->stats().cached_blocks, 0u);
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, tokens_from(1, 17)).reason, Reason::cleared);
}

TEST_F(CacheMemoryTest, BudgetShrinksAndGrows) {
  start({toy_group(GroupKind::full, 1, 2)}, 16 * 4096);
  Sequence kept = run(tokens_from(1, 17));
  for (int i = 0; i < 40; ++i) run(tokens_from(static_cast<TokenId>(1000 + 100 * i), 33)).close();
  EXPECT_LE(cache->resize(4 * 4096), 4u * 4096);
  cache->check();
  expect_rows(kept);
  step(kept, 4, tokens_from(70, 4));
  expect_rows(kept);
  EXPECT_EQ(cache->resize(64 * 4096), 64u * 4096);
}

TEST_F(CacheMemoryTest, LayoutsShareMemory) {
  start({toy_group(GroupKind::full, 1, 2)}, 16 * 4096);
  const Geometry wide = toy_geometry({toy_group(GroupKind::full, 4, 4)}, kBlock);
  const RootId other = cache->root(identity(), wide).value();
  EXPECT_NE(other, root);
  for (int i = 0; i < 100; ++i) run(tokens_from(static_cast<TokenId>(1000 + 100 * i), 33)).close();
  // The whole budget holds cached blocks of one size; the other gets it slab by slab.
  Sequence s = std::move(cache->open({.root = other, .token_capacity = 64}).value());
  cache->attach(s, tokens_from(1, 33));
  const StepNeed need{&s, 33};
  Result<Reservation> r = cache->reserve({&need, 1});
  ASSERT_TRUE(r.ok()) << r.error().message;
  r.value().commit(0, 33);
  EXPECT_GT(cache->journal().count(Reason::evicted_slab), 0u);
}

TEST_F(CacheMemoryTest, ClosingDuringAStepFencesItsBlocks) {
  Sequence a = run(tokens_from(1, 6));
  const StepNeed need{&a, 4};
  {
    Result<Reservation> r = cache->reserve({&need, 1});
    a.close();
    EXPECT_GT(cache->stats().fenced_bytes, 0u);
  }
  EXPECT_EQ(cache->stats().fenced_bytes, 0u);
  EXPECT_EQ(cache->stats().referenced_blocks, 0u);
}

TEST_F(CacheMemoryTest, LanesKeepDifferentTokensAndGiveTheirPagesBack) {
  constexpr std::uint32_t kDim = 8;
  start({toy_group(GroupKind::full, 2, 2, 0, kDim)});
  Sequence a = run(tokens_from(1, 22), {.publish = false});
  const std::uint64_t before = cache->stats().referenced_bytes;
  const std::vector<std::vector<std::uint32_t>> keep = {
      {0, 1, 7, 9, 15}, {}, {3}, {0, 2, 4, 6, 8, 10, 12, 14, 16}};
  const std::vector<std::span<const std::uint32_t>> spans(keep.begin(), keep.end());
  ASSERT_TRUE(cache->compact(a, 0, 20, spans).ok());
  EXPECT_EQ(cache->ragged_until(a, 0), 20u);
  EXPECT_LT(cache->stats().referenced_bytes, before);
  History h;
  h.assign(a.tokens());
  const std::size_t keys = geometry.key_bytes(geometry.groups[0]);
  const auto expect_lanes = [&] {
    for (std::uint32_t lane = 0; lane < 4; ++lane) {
      const LaneView v = cache->lane(a, 0, lane);
      for (std::uint32_t i = 0; i < v.slots; ++i) {
        const std::byte* page = arena_at(cache->arena(), v.pages[i / kBlock]);
        float key, value;
        std::memcpy(&key, page + i % kBlock * sizeof key, sizeof key);
        std::memcpy(&value, page + keys + i % kBlock * kDim * sizeof value, sizeof value);
        EXPECT_EQ(key, toy_value(h.at(v.positions[i]), v.positions[i], lane, 0));
        EXPECT_EQ(value, toy_value(h.at(v.positions[i]), v.positions[i], lane, 128));
      }
    }
  };
  expect_lanes();
  EXPECT_EQ(cache->lane(a, 0, 3).slots, 9u);

  // Freeing one head's page gives its bytes back.
  const std::uint64_t ragged = cache->stats().referenced_blocks;
  cache->shrink_lane(a, 0, 3, 8);
  EXPECT_EQ(cache->stats().referenced_blocks, ragged - 1);
  cache->check();

  // It goes on, is compacted again from lanes and blocks, and a fork shares its pages.
  step(a, 6, tokens_from(300, 6));
  h.assign(a.tokens());
  const std::vector<std::vector<std::uint32_t>> again = {{1, 15, 21}, {20}, {3, 23}, {0, 14}};
  const std::vector<std::span<const std::uint32_t>> more(again.begin(), again.end());
  ASSERT_TRUE(cache->compact(a, 0, 24, more).ok());
  expect_lanes();
  const std::uint64_t blocks = cache->stats().referenced_blocks;
  Sequence b = std::move(cache->fork(a).value());
  EXPECT_EQ(cache->stats().referenced_blocks, blocks);
  a.close();
  EXPECT_EQ(cache->lane(b, 0, 2).slots, 2u);
  cache->check();

  const std::vector<std::vector<std::uint32_t>> gone = {{2}, {}, {}, {}};  // lane 0 has dropped it
  const std::vector<std::span<const std::uint32_t>> bad(gone.begin(), gone.end());
  EXPECT_FALSE(cache->compact(b, 0, 24, bad).ok());
}

TEST_F(CacheMemoryTest, CompactedSequencesPublishNothingThatReadLess) {
  Sequence a = run(tokens_from(1, 12));
  const std::vector<std::vector<std::uint32_t>> keep = {{0}, {1}};
  const std::vector<std::span<const std::uint32_t>> spans(keep.begin(), keep.end());
  ASSERT_TRUE(cache->compact(a, 0, 12, spans).ok());
  step(a, 8, tokens_from(50, 8));
  EXPECT_EQ(a.published_blocks(), 3u);
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, tokens_from(1, 13)).tokens,
            12u);  // what was published before stays shared
  expect_rows(b);
  // Going back behind the compaction means computing again.
  EXPECT_EQ(cache->truncate(a, 10), 10u);
  expect_rows(a);
}

// Blocks of 32 tokens and lengths from 50 to 4,000: what holds no live token is a few percent. Room
// for the longest sequence, given to every one, would be half empty.
TEST_F(CacheMemoryTest, MemoryHoldsLittleElseThanTokens) {
  CacheOptions o;
  o.budget_bytes = 512 << 20;
  o.tokens_per_block = 32;
  cache = std::make_unique<KvCache>(o, toy_memory(2 * o.budget_bytes, std::size_t{2} << 20), clock);
  geometry = toy_geometry({toy_group(GroupKind::full, 8, 2, 0, 16)}, 32);
  root = cache->root(identity(), geometry).value();
  Random random(3);
  std::vector<Sequence> all;
  std::uint64_t tokens = 0, naive = 0;
  for (int i = 0; i < 60; ++i) {
    const auto length = static_cast<std::uint32_t>(50 + random.below(3951));
    all.push_back(open({.token_capacity = 4000}));
    cache->attach(all.back(), tokens_from(static_cast<TokenId>(i) << 16, length));
    const StepNeed need{&all.back(), length};
    Result<Reservation> r = cache->reserve({&need, 1});
    ASSERT_TRUE(r.ok());
    r.value().commit(0, length);
    tokens += length;
    naive += 4000;
  }
  const double bytes_per_token = geometry.bytes_per_token(geometry.groups[0]);
  const double waste = 1 - static_cast<double>(tokens) * bytes_per_token /
                               static_cast<double>(cache->stats().slab_bytes);
  const double naive_waste = 1 - static_cast<double>(tokens) / static_cast<double>(naive);
  EXPECT_LT(waste, 0.04);
  EXPECT_GT(naive_waste, 0.4);
  RecordProperty("waste_percent", static_cast<int>(waste * 100));
}

}  // namespace
}  // namespace quire
