#include "engine/prefill_cost.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace quire {
namespace {

TEST(PrefillCost, FindsBothPartsInNoise) {
  Random random(1);
  PrefillCost cost;
  for (int i = 0; i < 400; ++i) {
    const auto rows = static_cast<std::uint32_t>(64 + random.below(448));
    const double position = static_cast<double>(random.below(4000));
    cost.add(rows, position, rows * (500e3 + 40 * position) * (0.95 + 0.1 * random.unit()));
  }
  EXPECT_NEAR(cost.token_ns(), 500e3, 25e3);
  EXPECT_NEAR(cost.token_position_ns(), 40, 10);
  EXPECT_NEAR(cost.ns(0, 4000), 4000 * (500e3 + 40 * 2000), 0.05 * 4000 * 580e3);
}

TEST(PrefillCost, OnePositionSaysNothingOfTheSlope) {
  PrefillCost cost;
  for (int i = 0; i < 50; ++i) cost.add(256, 128 + i % 3, 256 * (1e6 + (i % 3) * 50e3));
  EXPECT_LT(cost.token_position_ns(), 10);
  EXPECT_NEAR(cost.token_seconds(), 1.05e-3, 0.1e-3);
}

TEST(PrefillCost, FollowsAMachineThatBecameSlower) {
  PrefillCost cost;
  for (int i = 0; i < 100; ++i) cost.add(512, 256, 512 * 1e6);
  for (int i = 0; i < 100; ++i) cost.add(512, 256, 512 * 3e6);
  EXPECT_NEAR(cost.token_seconds(), 3e-3, 0.1e-3);
}

TEST(PrefillCost, IsNeverBelowNothing) {
  PrefillCost falling;  // dearer at the beginning than later, as a cold machine is
  for (int i = 0; i < 50; ++i) falling.add(128, 40.0 * i, 128 * (3e6 - 50e3 * i));
  EXPECT_EQ(falling.token_position_ns(), 0);
  EXPECT_GT(falling.token_ns(), 0);
  PrefillCost steep;
  for (int i = 1; i < 50; ++i) steep.add(128, 400.0 * i, 128 * 400.0 * i * 1e3);
  EXPECT_GT(steep.token_ns(), 0);
}

TEST(PrefillCost, CountsTokensBeforeItKnowsBetter) {
  PrefillCost cost;
  cost.add(PrefillCost::kRowsMin - 1, 5, 1e9);
  EXPECT_FALSE(cost.known());
  EXPECT_EQ(cost.ns(10, 30), 20);
  EXPECT_EQ(cost.token_seconds(), 0);
}

}  // namespace
}  // namespace quire
