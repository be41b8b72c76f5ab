#include "kv/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace quire {
namespace {

constexpr std::size_t kPage = 65536;

struct TestArena {
  explicit TestArena(std::uint64_t budget_pages, std::size_t page = kPage, bool poison = true) {
    auto failing = std::make_unique<FailingMemory>(std::move(
        reserve_host_memory({.bytes = 4 * budget_pages * page, .page_bytes = page}).value()));
    memory = failing.get();
    arena = std::make_unique<Arena>(
        std::move(failing), ArenaOptions{.budget_bytes = budget_pages * page, .poison = poison});
  }
  ~TestArena() {
    for (const ArenaOffset at : held) arena->free(at);
  }
  bool take(SizeClass c) {
    const std::optional<ArenaOffset> at = arena->allocate(c);
    if (at) held.push_back(*at);
    return at.has_value();
  }
  std::uint64_t fill(SizeClass c) {
    std::uint64_t n = 0;
    while (take(c)) ++n;
    return n;
  }
  void give_all() {
    for (const ArenaOffset at : held) arena->free(at);
    held.clear();
  }
  FailingMemory* memory;
  std::unique_ptr<Arena> arena;
  std::vector<ArenaOffset> held;
};

TEST(Arena, SlackOfEverySizeClassIsUnderTwoPercent) {
  TestArena s(1 << 15, kMemoryPage);  // 64 GiB budget, nothing committed
  for (std::size_t bytes = 256; bytes < (200u << 20); bytes += 256 + bytes / 37) {
    const SizeClass c = s.arena->size_class(bytes);
    const double used = static_cast<double>(s.arena->slab_capacity(c) * s.arena->class_bytes(c));
    EXPECT_GT(used / static_cast<double>(s.arena->slab_bytes(c)), 0.98) << bytes;
    EXPECT_LE(s.arena->slab_bytes(c), bytes + (102u << 20)) << bytes;
  }
}

TEST(Arena, ASmallBudgetIsSharedOutRatherThanPerfectlyFilled) {
  TestArena s(32, kMemoryPage);
  const SizeClass c = s.arena->size_class(737280);  // would like 5 pages
  EXPECT_LE(s.arena->slab_bytes(c), 4 * kMemoryPage);
  EXPECT_GE(s.arena->slab_capacity(c), 2u);
}

TEST(Arena, EqualRoundedSizesShareAClass) {
  TestArena s(8);
  EXPECT_EQ(s.arena->size_class(1000), s.arena->size_class(1024));
  EXPECT_NE(s.arena->size_class(1024), s.arena->size_class(1025));
  EXPECT_EQ(s.arena->class_bytes(s.arena->size_class(1025)), 1280u);
}

TEST(Arena, ExtentsAreDisjointAndInsideTheBudget) {
  TestArena s(8);
  const SizeClass a = s.arena->size_class(1536), b = s.arena->size_class(20000);
  std::set<std::pair<std::size_t, std::size_t>> ranges;
  for (int i = 0; i < 1000; ++i) {
    const SizeClass c = i % 7 ? a : b;
    if (!s.take(c)) continue;
    const std::size_t start = static_cast<std::size_t>(s.held.back()) * kArenaUnit;
    ranges.emplace(start, start + s.arena->class_bytes(c));
  }
  std::size_t end = 0;
  for (const auto& [from, to] : ranges) {
    EXPECT_GE(from, end);
    end = to;
  }
  EXPECT_LE(s.memory->committed_bytes(), 8 * kPage);
  EXPECT_TRUE(s.arena->check().ok());
}

TEST(Arena, AllocatesExactlyWhatItSaidWasAvailable) {
  TestArena s(10);
  const SizeClass a = s.arena->size_class(4096), b = s.arena->size_class(40960);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(s.take(a));
  ASSERT_TRUE(s.take(b));
  const std::uint64_t promised = s.arena->available(b);
  EXPECT_EQ(s.fill(b), promised);
  const std::uint64_t rest = s.arena->available(a);
  EXPECT_EQ(s.fill(a), rest);
  EXPECT_EQ(s.arena->available(a), 0u);
}

TEST(Arena, AnEmptySlabReturnsAndTheClassKeepsOneSpare) {
  TestArena s(10);
  const SizeClass c = s.arena->size_class(32768);  // two per page
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(s.take(c));
  EXPECT_EQ(s.memory->committed_bytes(), 4 * kPage);
  s.give_all();
  EXPECT_EQ(s.memory->committed_bytes(), kPage);
  EXPECT_EQ(s.arena->stats().spare_bytes, kPage);
  s.arena->trim();
  EXPECT_EQ(s.memory->committed_bytes(), 0u);
  EXPECT_EQ(s.arena->stats().slabs_made, s.arena->stats().slabs_returned);
}

TEST(Arena, AnotherClassMayHaveTheSpare) {
  TestArena s(2);
  const SizeClass a = s.arena->size_class(kPage), b = s.arena->size_class(2048);
  ASSERT_TRUE(s.take(a));
  ASSERT_TRUE(s.take(a));
  EXPECT_FALSE(s.take(b));
  s.arena->free(s.held.back());
  s.held.pop_back();
  EXPECT_EQ(s.arena->available(b), kPage / 2048);
  EXPECT_TRUE(s.take(b));
  EXPECT_FALSE(s.take(a));
}

TEST(Arena, FullerSlabsAreFilledFirstSoThatOthersEmpty) {
  TestArena s(8);
  const SizeClass c = s.arena->size_class(4096);  // 16 per page
  for (int i = 0; i < 48; ++i) ASSERT_TRUE(s.take(c));
  // Keep 2 of the first slab, 12 of the second, 14 of the third.
  std::vector<ArenaOffset> keep;
  for (std::size_t i = 0; i < 48; ++i) {
    const std::size_t slab = i / 16, within = i % 16;
    if (within < (slab == 0 ? 2u : slab == 1 ? 12u : 14u))
      keep.push_back(s.held[i]);
    else
      s.arena->free(s.held[i]);
  }
  s.held = keep;
  const SlabId first = s.arena->slab_of(keep.front());
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(s.take(c));
    EXPECT_NE(s.arena->slab_of(s.held.back()), first);
  }
  ASSERT_TRUE(s.take(c));
  EXPECT_EQ(s.arena->slab_of(s.held.back()), first);  // only now
}

TEST(Arena, TheEmptiestSlabIsNeitherFullNorDraining) {
  TestArena s(8);
  const SizeClass c = s.arena->size_class(4096);  // 16 per page
  EXPECT_FALSE(s.arena->emptiest_slab(c));
  for (int i = 0; i < 32; ++i) ASSERT_TRUE(s.take(c));
  EXPECT_FALSE(s.arena->emptiest_slab(c));  // both are full
  const SlabId first = s.arena->slab_of(s.held[0]), second = s.arena->slab_of(s.held[16]);
  const auto free_last = [&](std::size_t begin, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      s.arena->free(s.held[begin]);
      s.held.erase(s.held.begin() + static_cast<std::ptrdiff_t>(begin));
    }
  };
  free_last(0, 4);
  EXPECT_EQ(s.arena->emptiest_slab(c), first);
  free_last(12, 10);
  EXPECT_EQ(s.arena->emptiest_slab(c), second);
  s.arena->drain(second);
  EXPECT_EQ(s.arena->emptiest_slab(c), first);
  s.arena->stop_draining(second);
}

TEST(Arena, ADrainingSlabHandsOutNothingAndReturnsWhenItsLastExtentIsFreed) {
  TestArena s(4);
  const SizeClass c = s.arena->size_class(16384);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(s.take(c));
  s.arena->free(s.held.back());
  s.held.pop_back();
  const SlabId slab = s.arena->slab_of(s.held[0]);
  s.arena->drain(slab);
  EXPECT_TRUE(s.arena->slab(slab).draining);
  ASSERT_TRUE(s.take(c));
  EXPECT_NE(s.arena->slab_of(s.held.back()), slab);
  std::vector<ArenaOffset> live;
  s.arena->for_each_live(slab, [&](ArenaOffset at) { live.push_back(at); });
  EXPECT_EQ(live, std::vector<ArenaOffset>(s.held.begin(), s.held.begin() + 3));
  EXPECT_EQ(s.memory->committed_bytes(), 2 * kPage);
  s.arena->for_each_live(slab, [&](ArenaOffset at) { s.arena->free(at); });
  s.held.erase(s.held.begin(), s.held.begin() + 3);
  EXPECT_EQ(s.memory->committed_bytes(), kPage);
  EXPECT_TRUE(s.arena->check().ok());
}

TEST(Arena, DrainingCanBeCalledOff) {
  TestArena s(1);
  const SizeClass c = s.arena->size_class(16384);
  ASSERT_TRUE(s.take(c));
  const SlabId slab = s.arena->slab_of(s.held[0]);
  s.arena->drain(slab);
  EXPECT_FALSE(s.take(c));
  s.arena->stop_draining(slab);
  EXPECT_EQ(s.fill(c), 3u);
}

TEST(Arena, BudgetGrowsAndShrinksAtRunTime) {
  TestArena s(2);
  const SizeClass c = s.arena->size_class(32768);
  EXPECT_EQ(s.fill(c), 4u);
  s.arena->set_budget(4 * kPage);
  EXPECT_EQ(s.fill(c), 4u);
  s.arena->set_budget(kPage);
  EXPECT_EQ(s.arena->over_budget_bytes(), 3 * kPage);
  EXPECT_EQ(s.arena->available(c), 0u);
  while (s.held.size() > 2) {
    s.arena->free(s.held.back());
    s.held.pop_back();
  }
  EXPECT_EQ(s.arena->over_budget_bytes(), 0u);
  EXPECT_EQ(s.memory->committed_bytes(), kPage);
}

TEST(Arena, WhenTheMachineRefusesMemoryNothingChangesAndItSaysWhy) {
  TestArena s(8);
  const SizeClass a = s.arena->size_class(32768), b = s.arena->size_class(4096);
  ASSERT_TRUE(s.take(a));
  s.memory->fail_after(0);
  EXPECT_TRUE(s.take(a));  // the other half of its page
  EXPECT_FALSE(s.take(a));
  EXPECT_FALSE(s.take(b));
  ASSERT_NE(s.arena->last_error(), nullptr);
  EXPECT_EQ(s.arena->last_error()->code, Code::exhausted);
  EXPECT_TRUE(s.arena->check().ok());
  s.memory->never_fail();
  EXPECT_TRUE(s.take(b));
}

TEST(Arena, CountersAddUp) {
  TestArena s(64);
  const SizeClass a = s.arena->size_class(1000), b = s.arena->size_class(30000);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(s.take(a));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(s.take(b));
  const ArenaStats t = s.arena->stats();
  EXPECT_EQ(t.committed_bytes, s.memory->committed_bytes());
  EXPECT_EQ(t.in_use_bytes, 100u * 1024 + 3 * 30208);
  EXPECT_EQ(t.payload_bytes, 100u * 1000 + 3 * 30000);
  EXPECT_EQ(t.free_bytes(), (t.extents - t.extents_in_use) == 0
                                ? 0
                                : s.arena->stats(a).free_bytes() + s.arena->stats(b).free_bytes());
  EXPECT_EQ(s.arena->stats(a).free_bytes(), (s.arena->stats(a).extents - 100) * 1024);
  EXPECT_NEAR(t.fragmentation(),
              1 - static_cast<double>(t.in_use_bytes) / static_cast<double>(t.committed_bytes),
              1e-12);
}

TEST(Arena, AHoleAnywhereInASlabIsFoundAndFilledLowestFirst) {
  TestArena s(1);
  const SizeClass c = s.arena->size_class(256);  // 256 per slab
  EXPECT_EQ(s.fill(c), 256u);
  for (const std::size_t hole : {200u, 3u, 130u}) s.arena->free(s.held[hole]);
  for (const std::size_t hole : {3u, 130u, 200u}) EXPECT_EQ(s.arena->allocate(c), s.held[hole]);
}

TEST(Arena, TagsBelongToTheirExtents) {
  TestArena s(4);
  const SizeClass c = s.arena->size_class(768);
  for (std::uint32_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(s.take(c));
    s.arena->set_tag(s.held.back(), i * 31);
  }
  for (std::uint32_t i = 0; i < 200; ++i) EXPECT_EQ(s.arena->tag(s.held[i]), i * 31);
}

TEST(Arena, FreedBytesAreNotANumber) {
  TestArena s(1);
  const SizeClass c = s.arena->size_class(4096);
  ASSERT_TRUE(s.take(c));
  float f;
  std::memcpy(&f, s.arena->at(s.held[0]), sizeof f);
  EXPECT_NE(f, f);  // fresh memory too
}

TEST(ArenaDeath, DoubleFreeAborts) {
  TestArena s(1);
  const SizeClass c = s.arena->size_class(4096);
  ASSERT_TRUE(s.take(c));
  ASSERT_TRUE(s.take(c));
  const ArenaOffset at = s.held.back();
  s.held.pop_back();
  s.arena->free(at);
  EXPECT_DEATH(s.arena->free(at), "words");
  EXPECT_DEATH(s.arena->free(static_cast<ArenaOffset>(static_cast<std::uint32_t>(s.held[0]) + 1)),
               "extent");
  EXPECT_DEATH(s.arena->free(static_cast<ArenaOffset>(kPage / 256 * 3)), "page_count_");
}

TEST(ArenaDeath, AWriteAfterFreeIsNoticed) {
  EXPECT_DEATH(
      {
        TestArena s(1);
        const SizeClass c = s.arena->size_class(4096);
        s.take(c);
        s.take(c);
        const ArenaOffset at = s.held.back();
        s.held.pop_back();
        s.arena->free(at);
        s.arena->at(at)[17] = std::byte{3};  // under ASAN this is where it ends
        s.take(c);
      },
      "");
}

}  // namespace
TEST(Arena, PreparesWhatItWillUseNextAndCountsItOnlyThen) {
  TestArena s(8);
  const SizeClass c = s.arena->size_class(kPage / 4);
  ASSERT_TRUE(s.take(c));
  const std::uint64_t committed = s.arena->stats().committed_bytes;
  int calls = 0;
  while (s.arena->prepare(3 * kPage)) ++calls;
  EXPECT_EQ(calls, 3);
  EXPECT_EQ(s.arena->stats().committed_bytes, committed);
  s.fill(c);                                  // through them and beyond
  EXPECT_FALSE(s.arena->prepare(3 * kPage));  // the budget is spent
  s.give_all();
  EXPECT_TRUE(s.arena->prepare(kPage));
  s.arena->set_budget(0);  // gives it back
  s.arena->set_budget(8 * kPage);
  EXPECT_TRUE(s.arena->prepare(kPage));
}

}  // namespace quire
