// Layouts with lossy groups: full blocks are encoded, the open one is rows in a group of its own.
#include <gtest/gtest.h>

#include "kv/cache_testing.h"
#include "kv/core.h"

namespace quire {
namespace {

class LossyCache : public CacheTest {
 protected:
  void SetUp() override { use(toy_lossy_geometry(kBlock)); }

  void use(const Geometry& g) {
    start({toy_group(GroupKind::full, 1, 1)});
    geometry = g;
    root = cache->root(identity(), geometry).value();
  }
  std::uint64_t held_bytes() const { return cache->stats().referenced_bytes; }
  std::uint64_t bytes(std::uint32_t sealed, std::uint32_t rows) const {
    return sealed * geometry.block_bytes(geometry.groups[0]) +
           rows * geometry.block_bytes(geometry.groups[1]);
  }
};

TEST_F(LossyCache, HoldsFullBlocksEncodedAndTheOpenOneAsRows) {
  Sequence s = run(tokens_from(0, 10));
  EXPECT_EQ(s.length(), 10u);
  EXPECT_EQ(held_bytes(), bytes(2, 1));
  step(s, 1, tokens_from(50, 1));
  EXPECT_EQ(held_bytes(), bytes(2, 1));
  step(s, 1, tokens_from(51, 1));  // the third is full
  EXPECT_EQ(held_bytes(), bytes(3, 0));
  expect_rows(s);
}

TEST_F(LossyCache, AStepHasNoPlaceForRowsOfBlocksItFillsWhole) {
  Sequence s = open();
  cache->attach(s, tokens_from(0, 15));
  step(s, 2);
  const StepNeed need{&s, 12};  // fills block 0 from the middle, 1 and 2 whole, begins 3
  Result<Reservation> r = cache->reserve({&need, 1});
  ASSERT_TRUE(r.ok());
  const ArenaOffset* rows = r.value().view(0, 1, 0).blocks;
  EXPECT_NE(rows[0], kNoBlock);
  EXPECT_EQ(rows[1], kNoBlock);
  EXPECT_EQ(rows[2], kNoBlock);
  EXPECT_NE(rows[3], kNoBlock);
  EXPECT_EQ(held_bytes(), bytes(3, 2));
}

TEST_F(LossyCache, AHitEndsAtABlockEdge) {
  { Sequence s = run(tokens_from(0, 12)); }
  std::vector<TokenId> other = tokens_from(0, 10);
  other[9] = 99;
  Sequence s = open();
  const Attached got = cache->attach(s, other);
  EXPECT_EQ(got.tokens, 8u);
  EXPECT_EQ(got.partial, 0u);
  prefill(s);
  expect_rows(s);
  s.close();
  Sequence whole = open();  // the last token of a prompt is computed: so is its block
  EXPECT_EQ(cache->attach(whole, tokens_from(0, 12)).tokens, 8u);
}

TEST_F(LossyCache, RollingBackIntoASealedBlockGoesToItsStart) {
  Sequence s = run(tokens_from(0, 11));
  EXPECT_EQ(cache->truncate(s, 10), 10u);  // the open block has its rows
  expect_rows(s);
  EXPECT_EQ(cache->truncate(s, 7), 4u);
  EXPECT_EQ(s.tokens().size(), 7u);
  EXPECT_EQ(held_bytes(), bytes(1, 0));
  prefill(s);
  expect_rows(s);
}

TEST_F(LossyCache, ARejectedDraftThatCrossedAnEdgeLeavesTheOpenBlockAsItWas) {
  Sequence s = run(tokens_from(0, 6));
  const std::vector<TokenId> draft = tokens_from(70, 4);  // positions 6 to 9
  for (const std::uint32_t accepted : {0u, 1u, 3u}) {
    Result<Sequence> fork = cache->fork(s);
    Sequence f = std::move(fork.value());
    const StepNeed need{&f, 4};
    Result<Reservation> r = cache->reserve({&need, 1});
    ASSERT_TRUE(r.ok());
    std::vector<TokenId> all = tokens_from(0, 6);
    all.insert(all.end(), draft.begin(), draft.end());
    write(r.value(), 0, all);
    EXPECT_EQ(r.value().commit(0, std::span(draft).first(accepted)), 6 + accepted);
    expect_rows(f);
  }
  expect_rows(s);
}

TEST_F(LossyCache, TokensOfABlockWhoseRowsAreGoneAreComputedAgain) {
  Sequence s = run(tokens_from(0, 3));
  const std::vector<TokenId> draft = tokens_from(70, 8);  // fills blocks 0 and 1, begins 2
  const StepNeed need{&s, 8};
  Result<Reservation> r = cache->reserve({&need, 1});
  ASSERT_TRUE(r.ok());
  std::vector<TokenId> all = tokens_from(0, 3);
  all.insert(all.end(), draft.begin(), draft.end());
  write(r.value(), 0, all);
  EXPECT_EQ(r.value().commit(0, std::span(draft).first(3)), 4u);  // block 1 had begun in the step
  EXPECT_EQ(s.tokens().size(), 6u);
}

TEST_F(LossyCache, AForkCopiesTheOpenBlockWhenItWrites) {
  Sequence s = run(tokens_from(0, 6));
  Sequence f = std::move(cache->fork(s).value());
  EXPECT_EQ(held_bytes(), bytes(1, 1));
  step(f, 1, tokens_from(80, 1));
  EXPECT_EQ(held_bytes(), bytes(1, 2));
  step(s, 1, tokens_from(90, 1));
  expect_rows(s);
  expect_rows(f);
}

TEST_F(LossyCache, ParkedSequencesKeepTheirOpenBlock) {
  Sequence s = run(tokens_from(0, 6));
  cache->preempt(s, Preempt::park);
  EXPECT_EQ(cache->attach(s).tokens, 6u);
  expect_rows(s);
  cache->preempt(s, Preempt::recompute);
  EXPECT_EQ(cache->attach(s).tokens, 4u);
}

TEST_F(LossyCache, RecentBlocksAndSinksStayAsRowsToo) {
  use(toy_lossy_geometry(kBlock, 0, /*recent=*/2, /*sinks=*/1));
  Sequence s = run(tokens_from(0, 22));  // five full blocks and an open one
  EXPECT_EQ(held_bytes(), bytes(5, 4));  // rows of block 0, 3, 4 and 5
  expect_rows(s);
  s.close();
  Sequence again = open();
  EXPECT_EQ(cache->attach(again, tokens_from(0, 22)).tokens, 20u);
  expect_rows(again);
  EXPECT_EQ(cache->truncate(again, 14), 14u);  // what it let go is still cached
  expect_rows(again);
}

TEST_F(LossyCache, WithoutTheRecentRowsThereIsNoHit) {
  use(toy_lossy_geometry(kBlock, 0, 1, 0));
  { Sequence s = run(tokens_from(0, 22)); }
  while (cache->core().store.evict_one(cache->core().layouts.back()->groups[1].size_class,
                                       Reason::evicted_capacity)) {
  }
  Sequence s = open();
  EXPECT_EQ(cache->attach(s, tokens_from(0, 22)).tokens, 0u);
}

}  // namespace
}  // namespace quire
