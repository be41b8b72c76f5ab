#include "kv/pool.h"

#include <gtest/gtest.h>

#include <cstring>

namespace quire {
namespace {

constexpr std::size_t kPage = 65536;

std::unique_ptr<Memory> memory(std::uint64_t pages) {
  return std::move(reserve_host_memory({.bytes = 4 * pages * kPage, .page_bytes = kPage}).value());
}

struct Heard final : PoolListener {
  std::vector<std::pair<char, std::uint64_t>> events;
  ArenaOffset from{}, to{};
  void block_idle(BlockId, std::uint64_t owner) override { events.emplace_back('i', owner); }
  void block_busy(BlockId, std::uint64_t owner) override { events.emplace_back('b', owner); }
  void block_moved(BlockId, std::uint64_t owner, ArenaOffset a, ArenaOffset b) override {
    events.emplace_back('m', owner);
    from = a;
    to = b;
  }
};

class BlockPoolTest : public testing::Test {
 protected:
  void TearDown() override { expect_balanced(); }
  void expect_balanced() {
    const Status s = pool.check_ledger();
    EXPECT_TRUE(s.ok()) << (s.ok() ? "" : s.error().message);
  }
  Arena arena{memory(4), {.budget_bytes = 4 * kPage, .poison = true}};
  SizeClass c = arena.size_class(16384);  // four per slab
  Heard heard;
  BlockPool pool{arena, {.blocks_max = 100, .listener = &heard}};
};

TEST_F(BlockPoolTest, SharedBlockReturnsOnlyWhenBothHoldersLetGo) {
  BlockRef a = pool.take(c);
  BlockRef b = a.share();
  const BlockId id = a.id();
  a = {};
  EXPECT_EQ(pool.state(id), BlockState::referenced);
  b = {};
  EXPECT_EQ(pool.state(id), BlockState::free);
  EXPECT_FALSE(pool.alive(id));
}

TEST_F(BlockPoolTest, AStaleIdIsNeverTheNewBlockInTheSamePlace) {
  BlockRef a = pool.take(c);
  const BlockId old = a.id();
  a = {};
  BlockRef b = pool.take(c);
  EXPECT_EQ(b.id().index, old.index);
  EXPECT_NE(b.id(), old);
  EXPECT_TRUE(pool.hold(old).empty());
  EXPECT_FALSE(pool.hold(b.id()).empty());
  EXPECT_DEATH((void)pool.offset(old), "alive");
}

TEST_F(BlockPoolTest, AnUntakenIdIsNotAlive) {
  EXPECT_FALSE(pool.alive({}));
  EXPECT_FALSE(pool.alive({0, 0}));
  BlockRef a = pool.take(c);
  const BlockId id = a.id();
  a = {};
  EXPECT_FALSE(pool.alive({id.index, id.generation + 1}));  // the free slot's own number
}

TEST_F(BlockPoolTest, TakesEverythingTheArenaHasAndThenNothing) {
  std::vector<BlockRef> held;
  while (held.emplace_back(pool.take(c)), !held.back().empty()) {
  }
  EXPECT_EQ(held.size() - 1, 16u);
  EXPECT_EQ(pool.ledger(), (Ledger{.free = 0, .referenced = 16, .total = 16}));
}

TEST_F(BlockPoolTest, RunningOutOfBlockNumbersIsLikeRunningOutOfMemory) {
  BlockPool small(arena, {.blocks_max = 2});
  BlockRef a = small.take(c), b = small.take(c);
  EXPECT_FALSE(b.empty());
  EXPECT_TRUE(small.take(c).empty());
  a = {};
  EXPECT_FALSE(small.take(c).empty());
}

TEST_F(BlockPoolTest, TheIndexKeepsABlockThatNobodyReads) {
  BlockRef a = pool.take(c);
  const BlockId id = a.id();
  CachedBlock cached = pool.cache(id);
  EXPECT_FALSE(a.unique());  // may no longer be written
  a = {};
  EXPECT_EQ(pool.state(id), BlockState::cached);
  BlockRef hit = cached.share();
  EXPECT_EQ(pool.state(id), BlockState::referenced);
  cached = {};
  EXPECT_EQ(pool.state(id), BlockState::referenced);  // evicting does not take it from its reader
  EXPECT_TRUE(hit.unique());
  hit = {};
  EXPECT_EQ(pool.state(id), BlockState::free);
}

TEST_F(BlockPoolTest, ABlockIsCachedOnlyOnce) {
  BlockRef a = pool.take(c);
  CachedBlock cached = pool.cache(a.id());
  EXPECT_DEATH((void)pool.cache(a.id()), "cached");
}

TEST_F(BlockPoolTest, ListenerHearsWhenABlockBecomesEvictableAndWhenItIsUsedAgain) {
  BlockRef a = pool.take(c);
  pool.set_owner(a.id(), 77);
  CachedBlock cached = pool.cache(a.id());
  BlockRef b = a.share();
  a = {};
  EXPECT_TRUE(heard.events.empty());
  b = {};
  b = cached.share();
  BlockRef d = cached.share();
  d = {};
  b = {};
  cached = {};
  EXPECT_EQ(heard.events,
            (std::vector<std::pair<char, std::uint64_t>>{{'i', 77}, {'b', 77}, {'i', 77}}));
}

TEST_F(BlockPoolTest, AFencedBlockIsNotReusedUntilTheFenceDrops) {
  BlockRef a = pool.take(c);
  const BlockId id = a.id();
  const ArenaOffset at = a.offset();
  BlockFence fence = pool.fence(id);
  a = {};
  EXPECT_EQ(pool.state(id), BlockState::fenced);
  EXPECT_EQ(pool.ledger().fenced, 1u);
  EXPECT_TRUE(pool.hold(id).empty());  // nobody gets a block that is on its way out
  std::vector<BlockRef> others;
  while (others.emplace_back(pool.take(c)), !others.back().empty())
    EXPECT_NE(others.back().offset(), at);
  EXPECT_EQ(others.size() - 1, 15u);
  fence = {};
  EXPECT_EQ(pool.take(c).id().index, id.index);
}

TEST_F(BlockPoolTest, AFenceOnACachedBlockKeepsItFromBeingEvictedButNotFromBeingRead) {
  BlockRef a = pool.take(c);
  CachedBlock cached = pool.cache(a.id());
  const BlockId id = a.id();
  a = {};
  BlockFence fence = pool.fence(id);
  EXPECT_EQ(pool.state(id), BlockState::fenced);
  EXPECT_EQ(heard.events.back().first, 'b');
  EXPECT_FALSE(cached.share().empty());
  fence = {};
  EXPECT_EQ(pool.state(id), BlockState::cached);
  EXPECT_EQ(heard.events.back().first, 'i');
}

TEST_F(BlockPoolTest, BlocksLetGoDuringAStepWaitForItAndForThoseBeforeIt) {
  BlockRef a = pool.take(c), b = pool.take(c), d = pool.take(c);
  const BlockId ia = a.id(), ib = b.id(), id = d.id();
  const std::uint64_t one = pool.submit_step();
  a = {};
  const std::uint64_t two = pool.submit_step();
  b = {};
  EXPECT_EQ(pool.ledger().fenced, 2u);
  pool.complete_step(one);
  EXPECT_EQ(pool.state(ia), BlockState::free);
  EXPECT_EQ(pool.state(ib), BlockState::fenced);
  pool.complete_step(two);
  EXPECT_EQ(pool.state(ib), BlockState::free);
  d = {};
  EXPECT_EQ(pool.state(id), BlockState::free);
  EXPECT_DEATH(pool.complete_step(two), "ticket");
}

TEST_F(BlockPoolTest, ABlockEvictedDuringAStepWaitsToo) {
  BlockRef a = pool.take(c);
  const BlockId id = a.id();
  CachedBlock cached = pool.cache(id);
  const std::uint64_t step = pool.submit_step();
  a = {};       // cancelled
  cached = {};  // evicted: the step may still read it
  EXPECT_EQ(pool.state(id), BlockState::fenced);
  EXPECT_TRUE(pool.hold(id).empty());
  pool.complete_step(step);
  EXPECT_FALSE(pool.alive(id));
}

TEST_F(BlockPoolTest, AStepAndANamedFenceBothHaveToEnd) {
  BlockRef a = pool.take(c);
  const BlockId id = a.id();
  const std::uint64_t step = pool.submit_step();
  BlockFence fence = pool.fence(id);
  a = {};
  pool.complete_step(step);
  EXPECT_EQ(pool.state(id), BlockState::fenced);
  fence = {};
  EXPECT_FALSE(pool.alive(id));
}

TEST_F(BlockPoolTest, MovingKeepsBytesIdAndHolders) {
  BlockRef a = pool.take(c), b = a.share();
  pool.set_owner(a.id(), 5);
  std::memset(a.bytes(), 42, 16384);
  const ArenaOffset before = a.offset();
  arena.drain(arena.slab_of(before));
  EXPECT_FALSE(pool.move(a.id()));  // nowhere to go without a new slab
  arena.stop_draining(arena.slab_of(before));
  std::vector<BlockRef> rest;
  for (int i = 0; i < 4; ++i) rest.push_back(pool.take(c));  // opens a second slab
  arena.drain(arena.slab_of(before));
  ASSERT_TRUE(pool.move(a.id()));
  EXPECT_NE(arena.slab_of(a.offset()), arena.slab_of(before));
  EXPECT_EQ(a.offset(), b.offset());
  EXPECT_TRUE(arena.memory().filled(static_cast<std::size_t>(b.offset()) * kArenaUnit, 16384,
                                    std::byte{42}));
  EXPECT_EQ(heard.from, before);
  EXPECT_EQ(heard.to, a.offset());
  EXPECT_EQ(pool.block_at(a.offset()), a.id());
  expect_balanced();
  arena.stop_draining(arena.slab_of(rest[0].offset()));
}

TEST_F(BlockPoolTest, FencedBlocksAndBlocksOfAStepInFlightMayNotMove) {
  BlockRef a = pool.take(c);
  EXPECT_TRUE(pool.movable(a.id()));
  {
    BlockFence fence = pool.fence(a.id());
    EXPECT_FALSE(pool.movable(a.id()));
    EXPECT_DEATH((void)pool.move(a.id()), "movable");
  }
  const std::uint64_t step = pool.submit_step();
  EXPECT_FALSE(pool.movable(a.id()));
  pool.complete_step(step);
  EXPECT_TRUE(pool.movable(a.id()));
}

TEST_F(BlockPoolTest, ReclaimableSlabsAreCountedWhole) {
  std::vector<BlockRef> refs;
  std::vector<CachedBlock> cached;
  for (int i = 0; i < 12; ++i) {
    refs.push_back(pool.take(c));
    cached.push_back(pool.cache(refs.back().id()));
  }
  EXPECT_EQ(pool.reclaimable_slabs(c), 0u);
  refs.erase(refs.begin(), refs.begin() + 4);  // the first slab is idle
  EXPECT_EQ(pool.reclaimable_slabs(c), 1u);
  refs.erase(refs.begin() + 1, refs.begin() + 4);  // three of the second
  EXPECT_EQ(pool.reclaimable_slabs(c), 1u);
  EXPECT_EQ(pool.reclaimable_slabs_by_moving(c), 1u);  // five busy blocks need two slabs
  refs.pop_back();
  EXPECT_EQ(pool.reclaimable_slabs_by_moving(c), 2u);
  const SlabId second = arena.slab_of(cached[4].offset());
  EXPECT_EQ(pool.slab_use(second).busy, 1u);
  EXPECT_EQ(pool.slab_use(second).cached, 3u);
}

TEST_F(BlockPoolTest, ASlabEmptiedByMovingAndEvictingServesAnotherClass) {
  std::vector<BlockRef> refs;
  std::vector<CachedBlock> cached;
  for (int i = 0; i < 16; ++i) {
    refs.push_back(pool.take(c));
    cached.push_back(pool.cache(refs.back().id()));
  }
  const SizeClass pages = arena.size_class(4096);
  EXPECT_TRUE(pool.take(pages).empty());
  refs.erase(refs.begin() + 1, refs.end());  // one busy block, in the first slab
  cached.pop_back();                         // and one free extent, in the last
  const SlabId victim = arena.slab_of(refs[0].offset());
  arena.drain(victim);
  pool.for_each_block(victim, [&](BlockId id) {
    if (pool.state(id) == BlockState::referenced) {
      ASSERT_TRUE(pool.move(id));
    } else {
      for (CachedBlock& k : cached)
        if (!k.empty() && k.id() == id) k = {};
    }
  });
  EXPECT_FALSE(pool.take(pages).empty());
  EXPECT_EQ(pool.state(refs[0].id()), BlockState::referenced);
}

TEST_F(BlockPoolTest, WhatLiesFreeForAWhileIsMovedTogetherAndGivenBack) {
  std::vector<BlockRef> refs;
  for (int i = 0; i < 12; ++i) {
    refs.push_back(pool.take(c));
    pool.set_owner(refs.back().id(), static_cast<std::uint64_t>(i));
    std::memset(refs.back().bytes(), i, 16384);
  }
  for (const int i : {10, 9, 6, 5, 2, 1}) refs.erase(refs.begin() + i);  // two left in each slab
  const auto committed = [&] { return arena.stats().committed_bytes; };
  EXPECT_EQ(committed(), 3 * kPage);
  pool.tidy();
  EXPECT_EQ(committed(), 3 * kPage);  // they may be wanted again
  const std::uint64_t step = pool.submit_step();
  for (int i = 0; i < 40; ++i) pool.tidy();
  EXPECT_EQ(committed(), 3 * kPage);  // a step may be reading them
  pool.complete_step(step);
  for (int i = 0; i < 40; ++i) pool.tidy();
  EXPECT_EQ(committed(), 2 * kPage);
  EXPECT_EQ(heard.events.size(), 2u);
  constexpr int kLeft[] = {0, 3, 4, 7, 8, 11};
  for (std::size_t i = 0; i < refs.size(); ++i)
    EXPECT_TRUE(arena.memory().filled(static_cast<std::size_t>(refs[i].offset()) * kArenaUnit,
                                      16384, static_cast<std::byte>(kLeft[i])));
}

TEST_F(BlockPoolTest, CopyDuplicatesAllBytes) {
  BlockRef a = pool.take(c), b = pool.take(c);
  std::memset(a.bytes(), 1, 16384);
  pool.copy(b.id(), a.id());
  EXPECT_EQ(std::memcmp(a.bytes(), b.bytes(), 16384), 0);
}

TEST_F(BlockPoolTest, LedgerHasEveryStateOfEveryClass) {
  const SizeClass small = arena.size_class(256);
  BlockRef a = pool.take(c), b = pool.take(small), d = pool.take(c);
  CachedBlock k = pool.cache(d.id());
  d = {};
  BlockFence f = pool.fence(b.id());
  b = {};
  EXPECT_EQ(pool.ledger(c), (Ledger{.free = 2, .cached = 1, .referenced = 1, .total = 4}));
  EXPECT_EQ(pool.ledger(small), (Ledger{.free = 255, .fenced = 1, .total = 256}));
  EXPECT_EQ(pool.ledger(),
            (Ledger{.free = 257, .cached = 1, .referenced = 1, .fenced = 1, .total = 260}));
}

TEST(BlockPoolDeath, ABlockThatDidNotComeHomeIsNoticed) {
  EXPECT_DEATH(
      {
        Arena arena(memory(1), {.budget_bytes = kPage});
        BlockRef* leaked;
        {
          BlockPool pool(arena, {.blocks_max = 4});
          leaked = new BlockRef(pool.take(arena.size_class(256)));
        }
        delete leaked;
      },
      "cached");
}

}  // namespace
}  // namespace quire
