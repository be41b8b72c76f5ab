#include "kv/evict/reuse_odds.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kv/evict/past_uses.h"

namespace quire {
namespace {

constexpr Nanoseconds kSecond = 1000000000;

TEST(ReuseOdds, WhatIsIdleLongestIsWorthLeastUntilSomethingIsKnown) {
  const ReuseOdds odds;
  EXPECT_GT(odds.worth(0, kSecond), odds.worth(0, 10 * kSecond));
  EXPECT_GT(odds.worth(0, 10 * kSecond), odds.worth(0, 1000 * kSecond));
}

// Blocks come back after about a minute, never sooner: one idle for 50 s is worth more than one
// just used, and one idle for an hour is worth least.
TEST(ReuseOdds, LearnsTheUsualTimeBetweenTwoUses) {
  ReuseOdds odds;
  Random random(5);
  Nanoseconds now = 0;
  for (int i = 0; i < 20000; ++i, now += kSecond) {
    odds.idle(0, now);
    if (i > 60 && random.chance(0.5))
      odds.used(0, (55 + static_cast<Nanoseconds>(random.below(10))) * kSecond);
  }
  odds.update(now);
  EXPECT_GT(odds.worth(0, 50 * kSecond), 1.5 * odds.worth(0, 0));
  EXPECT_LT(odds.worth(0, 3600 * kSecond), 0.1 * odds.worth(0, 0));
}

TEST(ReuseOdds, AClassThatIsUsedMoreIsWorthMore) {
  ReuseOdds odds;
  const std::uint32_t never = ReuseOdds::class_of(0, false), often = ReuseOdds::class_of(9, false);
  Nanoseconds now = 0;
  for (int i = 0; i < 4000; ++i, now += kSecond / 10) {
    odds.idle(never, now);
    odds.idle(often, now);
    if (i % 20 == 0) odds.used(never, 10 * kSecond);
    if (i % 20 != 0) odds.used(often, 10 * kSecond);
  }
  odds.update(now);
  EXPECT_GT(odds.worth(often, kSecond), 5 * odds.worth(never, kSecond));
}

TEST(PastUses, RemembersHitsEndAndTimeOnce) {
  PastUses past(16);
  past.add(77, {5, true}, 90 * kSecond);
  past.add(78, {1000, false}, kSecond);
  const std::optional<PastUses::Block> b = past.take(77);
  ASSERT_TRUE(b);
  EXPECT_EQ(b->past.hits, 5u);
  EXPECT_TRUE(b->past.end);
  EXPECT_NEAR(static_cast<double>(b->last_use), 90e9, 2e6);
  EXPECT_FALSE(past.take(77));
  EXPECT_EQ(past.take(78)->past.hits, 127u);
}

}  // namespace
}  // namespace quire
