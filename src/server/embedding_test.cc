#include "server/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

TEST(Embedding, IsCutAndThenScaled) {
  const std::vector<float> pooled{3, 4, 12};
  const auto two = shape_embedding(pooled, {.pooling = Pooling::last, .dimensions = 2});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_FLOAT_EQ(two[0], 0.6f);
  EXPECT_FLOAT_EQ(two[1], 0.8f);
  const auto all = shape_embedding(pooled, {.pooling = Pooling::last});
  EXPECT_FLOAT_EQ(all[2], 12.0f / 13);
  EXPECT_EQ(shape_embedding(pooled, {.pooling = Pooling::last, .normalize = false}), pooled);
}

TEST(Embedding, ZeroStaysZero) {
  const std::vector<float> zero(4);
  EXPECT_EQ(shape_embedding(zero, {.pooling = Pooling::mean}), zero);
}

TEST(Embedding, Base64) {
  EXPECT_EQ(base64_floats({}), "");
  const float one[] = {1.0f}, two[] = {1.0f, -2.5f}, three[] = {1.0f, -2.5f, 0.1f};
  EXPECT_EQ(base64_floats(one), "AACAPw==");
  EXPECT_EQ(base64_floats(two), "AACAPwAAIMA=");
  EXPECT_EQ(base64_floats(three), "AACAPwAAIMDNzMw9");
}

}  // namespace
}  // namespace quire
