#include "kv/select/sparse_prefill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kv/retain/testing.h"

namespace quire {
namespace {
using testing::ElementsAre;

constexpr std::uint32_t kDim = 8, kTokens = 96;
constexpr float kScale = 0.35f;
constexpr AntidiagonalOptions kOptions = {.block = 16, .stride = 4};

// Keys drift slowly, as neighbouring tokens of a text do.
std::vector<float> drifting(std::uint64_t seed) {
  std::vector<float> x = noise(kTokens * kDim, seed);
  for (std::size_t i = kDim; i < x.size(); ++i) x[i] = 0.9f * x[i - kDim] + 0.45f * x[i];
  return x;
}

// The true share of a query block's attention that each key block gets.
std::vector<float> true_shares(const std::vector<float>& q, const std::vector<float>& k,
                               std::uint32_t query_block) {
  std::vector<float> shares(kTokens / kOptions.block), row(kTokens);
  for (std::uint32_t i = query_block * 16; i < query_block * 16 + 16; ++i) {
    const auto seen = std::span(row).first(i + 1);
    attention(std::span(q).subspan(i * kDim, kDim), kScale, k, seen);
    for (std::uint32_t j = 0; j <= i; ++j) shares[j / 16] += seen[j] / 16;
  }
  return shares;
}

TEST(XAttention, SharesOfAQueryBlockSumToOneAndNothingLiesAhead) {
  const BlockScores scores =
      antidiagonal_scores({drifting(1), kTokens, 0, kScale}, drifting(2), kOptions);
  ASSERT_EQ(scores.blocks, 6u);
  for (std::uint32_t b = 0; b < 6; ++b) {
    float sum = 0;
    for (std::uint32_t j = 0; j < 6; ++j) {
      sum += scores.row(b)[j];
      EXPECT_TRUE(j <= b || scores.row(b)[j] == 0);
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

TEST(XAttention, WithStrideOneAndBlocksOfOneIsAttentionItself) {
  const std::vector<float> q = drifting(1), k = drifting(2);
  const BlockScores scores =
      antidiagonal_scores({q, kTokens, 0, kScale}, k, {.block = 1, .stride = 1});
  std::vector<float> row(kTokens);
  attention(std::span(q).subspan(95 * kDim, kDim), kScale, k, row);
  for (std::uint32_t j = 0; j < kTokens; ++j) EXPECT_NEAR(scores.row(95)[j], row[j], 1e-6);
}

TEST(XAttention, AThresholdOfOneIsDense) {
  const BlockScores scores =
      antidiagonal_scores({drifting(1), kTokens, 0, kScale}, drifting(2), kOptions);
  EXPECT_THAT(choose_blocks(scores, 3, 1), ElementsAre(0, 1, 2, 3));
}

TEST(XAttention, AlwaysTakesTheFirstBlockAndItsOwn) {
  BlockScores scores{4, std::vector<float>(16)};
  scores.shares[3 * 4 + 1] = 0.98f;
  EXPECT_THAT(choose_blocks(scores, 3, 0.9), ElementsAre(0, 1, 3));
  EXPECT_THAT(choose_blocks(scores, 0, 0.5), ElementsAre(0));
}

// A block of keys that all queries look at is found, wherever it stands.
TEST(XAttention, FindsTheBlockThatHoldsTheMass) {
  std::vector<float> q = drifting(1), k = drifting(2);
  for (std::uint32_t t = 32; t < 48; ++t)
    for (std::uint32_t c = 0; c < kDim; ++c) k[t * kDim + c] = c == 0 ? 6.0f : 0.0f;
  for (std::uint32_t t = 0; t < kTokens; ++t) q[t * kDim] = 3;
  const BlockScores scores = antidiagonal_scores({q, kTokens, 0, kScale}, k, kOptions);
  const std::vector<std::uint32_t> blocks = choose_blocks(scores, 5, 0.9);
  EXPECT_THAT(blocks, ElementsAre(0, 2, 5));
  const std::vector<float> shares = true_shares(q, k, 5);
  float held = 0;
  for (std::uint32_t b : blocks) held += shares[b];
  EXPECT_GE(held, 0.9f);
}

TEST(XAttention, APromptThatDoesNotFillItsLastBlockIsScoredToItsEnd) {
  const std::vector<float> q = drifting(1), k = drifting(2);
  const std::uint32_t n = 90;
  const BlockScores scores = antidiagonal_scores({std::span(q).first(n * kDim), n, 0, kScale},
                                                 std::span(k).first(n * kDim), kOptions);
  ASSERT_EQ(scores.blocks, 6u);
  float sum = 0;
  for (float x : scores.row(5)) sum += x;
  EXPECT_NEAR(sum, 1, 1e-5);
}

TEST(VerticalSlash, FindsAColumnAndADiagonal) {
  std::vector<float> q(kTokens * kDim), k(kTokens * kDim);
  // Column: every query likes key 20. Diagonal: query i likes key i - 40 (a code that only they
  // share).
  const std::vector<float> codes = noise(kTokens * kDim, 5);
  for (std::uint32_t t = 0; t < kTokens; ++t)
    for (std::uint32_t c = 1; c < kDim; ++c) {
      k[t * kDim + c] = 2 * codes[t * kDim + c];
      if (t >= 40) q[t * kDim + c] = 6 * codes[(t - 40) * kDim + c];
    }
  for (std::uint32_t t = 0; t < kTokens; ++t) q[t * kDim] = 10;
  k[20 * kDim] = 6;
  const VerticalSlash pattern = vertical_slash({std::span(q).subspan(64 * kDim), 32, 64, kScale}, k,
                                               {.columns = 3, .diagonals = 3, .forced = 2});
  EXPECT_THAT(pattern.columns, ElementsAre(0, 1, 20));
  EXPECT_THAT(pattern.diagonals, ElementsAre(0, 1, 40));
  EXPECT_TRUE(pattern.sees(70, 20));
  EXPECT_TRUE(pattern.sees(70, 30));
  EXPECT_TRUE(pattern.sees(70, 69));
  EXPECT_FALSE(pattern.sees(70, 60));
  EXPECT_FALSE(pattern.sees(10, 20));
}

TEST(VerticalSlash, WithEveryDiagonalIsDense) {
  const std::vector<float> q = drifting(1), k = drifting(2);
  const VerticalSlash pattern = vertical_slash({std::span(q).subspan(64 * kDim), 32, 64, kScale}, k,
                                               {.columns = 0, .diagonals = kTokens});
  for (std::uint32_t i = 0; i < kTokens; i += 7)
    for (std::uint32_t j = 0; j < kTokens; ++j) EXPECT_EQ(pattern.sees(i, j), j <= i);
}

}  // namespace
}  // namespace quire
