#include "base/histogram.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Histogram, AValueIsCountedUpToAndIncludingItsBound) {
  static constexpr double kBounds[] = {1, 2, 4};
  Histogram h(kBounds);
  for (const double v : {0.5, 1.0, 1.5, 4.0, 9.0}) h.add(v);
  EXPECT_EQ(h.counts[0], 2u);
  EXPECT_EQ(h.counts[1], 1u);
  EXPECT_EQ(h.counts[2], 1u);
  EXPECT_EQ(h.counts[3], 1u) << "beyond the last bound";
  EXPECT_EQ(h.count, 5u);
  EXPECT_DOUBLE_EQ(h.sum, 16);
}

TEST(GapSketch, QuantilesAreWithinATenth) {
  GapSketch gaps;
  EXPECT_EQ(gaps.quantile(0.5), 0);
  for (int i = 1; i <= 1000; ++i) gaps.add(i * 1e-3);  // 1 ms to 1 s
  for (const double q : {0.1, 0.5, 0.9, 0.99}) EXPECT_NEAR(gaps.quantile(q), q, 0.1 * q) << q;
  gaps = {};
  gaps.add(0);
  gaps.add(1e9);
  EXPECT_LE(gaps.quantile(0.5), 2e-4);
  EXPECT_GT(gaps.quantile(1), 5);
}

}  // namespace
}  // namespace quire
