#include "kv/evict/evict.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "base/random.h"

namespace quire {
namespace {

constexpr Nanoseconds kSecond = 1000000000;

std::unique_ptr<Evictor> make(std::string_view name, std::uint32_t entries = 1000) {
  return find_evict_policy(name).value()->make({.entries_max = entries});
}

EvictId id(std::uint32_t i) { return static_cast<EvictId>(i); }

std::vector<std::uint32_t> drain(Evictor& e, Nanoseconds now = 0) {
  std::vector<std::uint32_t> order;
  while (const std::optional<EvictId> v = e.pick(now))
    order.push_back(static_cast<std::uint32_t>(*v));
  return order;
}

using Order = std::vector<std::uint32_t>;

class EveryPolicy : public testing::TestWithParam<const EvictPolicy*> {
 protected:
  std::unique_ptr<Evictor> evictor = GetParam()->make({.entries_max = 1000});
};
INSTANTIATE_TEST_SUITE_P(Evict, EveryPolicy, testing::ValuesIn(evict_policies()),
                         [](const auto& i) { return std::string(i.param->name); });

TEST_P(EveryPolicy, PicksEachEntryOnceAndThenNothing) {
  for (std::uint32_t i = 0; i < 100; ++i)
    evictor->add(id(i), {.key = i + 1, .bytes = 10, .last_use = i, .hits = i % 5});
  EXPECT_EQ(evictor->bytes(), 1000u);
  Order order = drain(*evictor);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::unique(order.begin(), order.end()) == order.end());
  EXPECT_EQ(evictor->bytes(), 0u);
}

TEST_P(EveryPolicy, NeverPicksWhatIsInUseAgain) {
  for (std::uint32_t i = 0; i < 10; ++i)
    evictor->add(id(i), {.key = i + 1, .bytes = 1, .last_use = i});
  evictor->remove(id(0));
  evictor->remove(id(5));
  for (const std::uint32_t v : drain(*evictor)) {
    EXPECT_NE(v, 0u);
    EXPECT_NE(v, 5u);
  }
}

TEST_P(EveryPolicy, ExpiredEntriesLeaveFirst) {
  for (std::uint32_t i = 0; i < 10; ++i)
    evictor->add(id(i), {.key = i + 1,
                         .bytes = 1,
                         .last_use = i,
                         .expires = i == 7   ? kSecond
                                    : i == 8 ? 5 * kSecond
                                             : 0,
                         .hits = 50,
                         .priority = 100});
  EXPECT_EQ(evictor->pick(2 * kSecond), id(7));
  EXPECT_TRUE(evictor->picked_expired());
  EXPECT_NE(evictor->pick(2 * kSecond), id(8));
  EXPECT_FALSE(evictor->picked_expired());
  EXPECT_EQ(evictor->pick(6 * kSecond), id(8));
}

TEST_P(EveryPolicy, OldAndUselessLeavesBeforeNewAndUseful) {
  evictor->add(id(1), {.key = 1,
                       .bytes = 1000,
                       .last_use = 100 * kSecond,
                       .recompute_ns = 1000000,
                       .hits = 9,
                       .priority = 60});
  evictor->add(id(2), {.key = 2,
                       .bytes = 1000,
                       .last_use = 1 * kSecond,
                       .recompute_ns = 1000,
                       .hits = 0,
                       .priority = 40});
  EXPECT_EQ(evictor->pick(101 * kSecond), id(2));
}

TEST_P(EveryPolicy, AParentThatShowsUpLateLeavesInItsTurn) {
  // Two chains; the older one's leaf leaves, then its parent must go before the newer chain.
  evictor->add(id(0), {.key = 1, .bytes = 1, .last_use = 10 * kSecond, .recompute_ns = 100});
  evictor->add(id(1), {.key = 2, .bytes = 1, .last_use = 20 * kSecond, .recompute_ns = 100});
  EXPECT_EQ(evictor->pick(30 * kSecond), id(0));
  evictor->add(id(2), {.key = 3, .bytes = 1, .last_use = 10 * kSecond, .recompute_ns = 100});
  EXPECT_EQ(evictor->pick(31 * kSecond), id(2));
  EXPECT_EQ(evictor->pick(32 * kSecond), id(1));
}

TEST_P(EveryPolicy, ANumberUsedAgainForAnotherBlockStartsAfresh) {
  for (int round = 0; round < 50; ++round) {
    evictor->add(
        id(3),
        {.key = 100u + static_cast<unsigned>(round), .bytes = 1, .last_use = round, .hits = 0});
    EXPECT_EQ(evictor->pick(round), id(3));
  }
}

TEST(Lru, OrdersByLastUseWhateverTheOrderOfArrival) {
  auto e = make("lru");
  for (const std::uint32_t i : {3u, 5u, 1u, 6u, 0u, 2u}) e->add(id(i), {.last_use = i});
  EXPECT_EQ(drain(*e), (Order{0, 1, 2, 3, 5, 6}));
}

TEST(Lfu, OrdersByHitsThenByLastUse) {
  auto e = make("lfu");
  e->add(id(1), {.last_use = 9, .hits = 2});
  e->add(id(2), {.last_use = 1, .hits = 1000000});
  e->add(id(3), {.last_use = 1, .hits = 1500000});
  e->add(id(4), {.last_use = 5, .hits = 2});
  e->add(id(5), {.last_use = 99, .hits = 0});
  e->add(id(6), {.last_use = 0, .hits = 4000000000u});
  EXPECT_EQ(drain(*e), (Order{5, 4, 1, 2, 3, 6}));
}

TEST(Priority, OrdersByPriorityThenByLastUse) {
  auto e = make("priority");
  e->add(id(1), {.last_use = 1, .priority = 100});
  e->add(id(2), {.last_use = 9, .priority = 0});
  e->add(id(3), {.last_use = 3, .priority = 50});
  e->add(id(4), {.last_use = 2, .priority = 50});
  EXPECT_EQ(drain(*e), (Order{2, 4, 3, 1}));
}

TEST(S3Fifo, AScanDoesNotPushOutWhatIsUsedOften) {
  auto e = make("s3fifo", 10000);
  for (std::uint32_t i = 0; i < 10; ++i)
    e->add(id(i), {.key = i + 1, .bytes = 1, .last_use = i, .hits = 4});
  Nanoseconds now = 100;
  std::uint32_t hot_lost = 0;
  for (std::uint32_t i = 10; i < 5000;
       ++i, ++now) {  // a long scan of blocks used once; room for 100
    e->add(id(i), {.key = i + 1, .bytes = 1, .last_use = now});
    if (e->size() > 100) hot_lost += *e->pick(now) < id(10);
  }
  EXPECT_EQ(hot_lost, 0u);
}

TEST(S3Fifo, WhatReturnsAfterLeavingGoesToTheMainQueue) {
  auto e = make("s3fifo");
  for (std::uint32_t i = 0; i < 20; ++i)
    e->add(id(i), {.key = i + 1, .bytes = 1, .last_use = i, .hits = 3});
  for (std::uint32_t i = 50; i < 60; ++i) e->add(id(i), {.key = i + 1, .bytes = 1, .last_use = i});
  EXPECT_EQ(e->pick(60), id(50));                           // used once
  e->add(id(70), {.key = 51, .bytes = 1, .last_use = 61});  // the same block again
  e->add(id(71), {.key = 99, .bytes = 1, .last_use = 62});  // one never seen
  const Order order = drain(*e);
  EXPECT_EQ(order.back(), 70u);  // behind the twenty that are used often; 71 is not
}

TEST(S3Fifo, EachUseInTheMainQueueIsWorthALap) {
  auto e = make("s3fifo");
  for (std::uint32_t i = 0; i < 4; ++i) {
    EvictEntry entry{.key = i + 1, .bytes = 1, .last_use = i, .hits = 2};  // goes to the main one
    e->add(id(i), entry);
    e->remove(id(i));
    entry.hits += 3 - i;
    e->add(id(i), entry);
  }
  EXPECT_EQ(e->pick(10), id(3));
  e->add(id(4), {.key = 9, .bytes = 1, .last_use = 11, .hits = 2});  // before the next lap
  EXPECT_EQ(drain(*e), (Order{4, 2, 1, 0}));
}

TEST(Cost, LeastSavedPerByteLeavesFirst) {
  auto e = make("cost");
  e->add(id(1), {.bytes = 1000, .recompute_ns = 8000});             // 8 ns per byte
  e->add(id(2), {.bytes = 4000, .recompute_ns = 8000});             // 2
  e->add(id(3), {.bytes = 1000, .recompute_ns = 8000, .hits = 3});  // 32
  e->add(id(4), {.bytes = 1000,
                 .recompute_ns = 8000,
                 .priority = 30});  // 2 octaves below: 2, later than id 2
  EXPECT_EQ(drain(*e), (Order{2, 4, 1, 3}));
}

TEST(Cost, WhatIsNotUsedAgesAndLeavesInTheEnd) {
  auto e = make("cost");
  e->add(id(0), {.bytes = 1, .last_use = 0, .recompute_ns = 100});  // once dear
  Nanoseconds now = 1;
  int rounds = 0;
  for (;; ++rounds, ++now) {  // a stream of cheaper ones, each used just now
    e->add(id(1), {.bytes = 1, .last_use = now, .recompute_ns = 10});
    if (*e->pick(now) == id(0)) break;
    ASSERT_LT(rounds, 100);
  }
  EXPECT_GE(rounds, 5);  // about 100 / 10
}

TEST(Cost, AnExpiredDearEntryDoesNotAgeTheOthers) {
  auto e = make("cost");
  e->add(id(0), {.bytes = 1, .recompute_ns = 1000000, .expires = 1});
  e->add(id(1), {.bytes = 1, .last_use = 1, .recompute_ns = 100});
  EXPECT_EQ(e->pick(kSecond), id(0));
  e->add(id(2), {.bytes = 1, .last_use = kSecond, .recompute_ns = 10});
  EXPECT_EQ(e->pick(2 * kSecond), id(2));
}

TEST(EvictPolicies, UnknownNameListsTheKnownOnes) {
  EXPECT_EQ(evict_policies()[0]->name, "odds");
  EXPECT_FALSE(find_evict_policy("clairvoyant").ok());  // no server knows the future
  EXPECT_TRUE(find_replay_evict_policy("clairvoyant").ok());
  const auto r = find_evict_policy("random");
  ASSERT_FALSE(r.ok());
  EXPECT_NE(r.error().message.find("s3fifo"), std::string::npos);
}

// A hot set among one-time blocks, sizes and costs unlike: what recomputing costs in all, by
// policy.
TEST(EvictPolicies, CostSavesMoreRecomputeTimeThanLru) {
  const auto run = [](std::string_view policy) {
    constexpr std::uint32_t kBlocks = 2000;
    auto e = make(policy, kBlocks);
    Random random(11);
    std::vector<EvictEntry> blocks(kBlocks);
    for (std::uint32_t i = 0; i < kBlocks; ++i)
      blocks[i] = {
          .key = i + 1, .bytes = 1u << random.below(6), .recompute_ns = 1 << random.below(10)};
    std::uint64_t spent = 0;
    for (Nanoseconds now = 1; now < 100000; ++now) {
      const auto i = static_cast<std::uint32_t>(random.chance(0.5) ? random.below(100)
                                                                   : random.below(kBlocks));
      if (e->contains(id(i))) {
        e->remove(id(i));
        ++blocks[i].hits;
      } else {
        spent += static_cast<std::uint64_t>(blocks[i].recompute_ns);
        blocks[i].hits = 0;
      }
      blocks[i].last_use = now;
      e->add(id(i), blocks[i]);
      while (e->bytes() > 3000) e->pick(now);
    }
    return spent;
  };
  EXPECT_LT(run("cost"), run("lru") * 8 / 10);
}

}  // namespace
}  // namespace quire
