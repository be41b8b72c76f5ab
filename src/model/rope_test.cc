#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

TEST(RopeTable, EqualsLongDoubleTrigonometryRoundedOnce) {
  RopeTable table({.base = 100000.0f, .dimensions = 64, .factors = {}, .linear_factor = 1});
  table.cover(40000);
  for (const std::uint32_t position : {0u, 1u, 7u, 255u, 256u, 8191u, 39999u}) {
    for (std::uint32_t i = 0; i < 32; ++i) {
      const long double angle = position / powl(100000.0L, 2.0L * i / 64);
      EXPECT_NEAR(table.cosines(position)[i], static_cast<float>(cosl(angle)), 6e-8)
          << position << ' ' << i;
      EXPECT_NEAR(table.sines(position)[i], static_cast<float>(sinl(angle)), 6e-8)
          << position << ' ' << i;
    }
  }
}

TEST(RopeTable, LinearScalingDividesPositionsAndFactorsDivideFrequencies) {
  RopeTable plain({.base = 10000.0f, .dimensions = 4, .factors = {}, .linear_factor = 1});
  RopeTable scaled({.base = 10000.0f, .dimensions = 4, .factors = {2, 4}, .linear_factor = 2});
  plain.cover(20);
  scaled.cover(20);
  EXPECT_EQ(scaled.cosines(16)[0], plain.cosines(4)[0]);
  EXPECT_EQ(scaled.sines(16)[1], plain.sines(2)[1]);
}

}  // namespace
}  // namespace quire
