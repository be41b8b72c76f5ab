#include "kv/evict/expiry.h"

#include <gtest/gtest.h>

#include <map>

#include "base/random.h"

namespace quire {
namespace {

constexpr Nanoseconds kTick = 1 << 20;

TEST(Expiry, NothingIsDueBeforeItsTimeAndEverythingSoonAfter) {
  Expiry expiry(1000);
  Random random(5);
  std::map<std::uint32_t, Nanoseconds> model;
  Nanoseconds now = 0;
  for (int n = 0; n < 200000; ++n) {
    const auto id = static_cast<std::uint32_t>(random.below(1000));
    if (random.chance(0.5)) {
      if (model.count(id)) {
        expiry.remove(id);
        model.erase(id);
      } else {
        const Nanoseconds in =
            1 + static_cast<Nanoseconds>(random.next() >> (24 + random.below(30)));
        expiry.add(id, now + in);
        model[id] = now + in;
      }
    }
    if (random.chance(0.3))
      now += static_cast<Nanoseconds>(random.next() >> (30 + random.below(30)));
    while (const std::optional<std::uint32_t> due = expiry.due(now)) {
      ASSERT_TRUE(model.count(*due));
      ASSERT_LE(model[*due], now);
      expiry.remove(*due);
      model.erase(*due);
    }
    for (const auto& [i, at] : model) ASSERT_GT(at + kTick, now) << i;
    ASSERT_EQ(expiry.size(), model.size());
  }
}

TEST(Expiry, AYearAwayIsNoProblem) {
  Expiry expiry(2);
  const Nanoseconds year = 365ll * 86400 * 1000000000;
  expiry.add(0, year);
  expiry.add(1, 10 * year);
  EXPECT_FALSE(expiry.due(year - kTick));
  EXPECT_EQ(expiry.due(year + kTick), 0u);
  expiry.remove(0);
  EXPECT_FALSE(expiry.due(9 * year));
  EXPECT_EQ(expiry.due(11 * year), 1u);
}

TEST(Expiry, WhatHasRunOutAlreadyIsDueAtOnce) {
  Expiry expiry(1);
  EXPECT_FALSE(expiry.due(1000 * kTick));
  expiry.add(0, 5);
  EXPECT_EQ(expiry.due(1000 * kTick), 0u);
}

}  // namespace
}  // namespace quire
