// What the research codecs claim: polar's angles, QJL's unbiased estimate, and what minicache keeps of
// two layers.
#include <gtest/gtest.h>

#include <cmath>

#include "base/half.h"
#include "format/minicache.h"
#include "format/polar.h"
#include "format/qjl.h"
#include "format/testing.h"

namespace quire {
namespace {

TEST(Polar, FineAnglesGiveTheBlockBackAndTheRadiusIsItsNorm) {
  constexpr std::uint32_t kCount = 1 << 14;
  std::vector<float> cosines(kCount), sines(kCount);
  for (std::uint32_t i = 0; i < kCount; ++i) {
    cosines[i] = static_cast<float>(std::cos(6.283185307179586 * i / kCount));
    sines[i] = static_cast<float>(std::sin(6.283185307179586 * i / kCount));
  }
  const PolarDirections fine{cosines.data(), sines.data(), kCount};
  const PolarDirections levels[kPolarLevels] = {fine, fine, fine, fine};
  Gaussian random(1);
  for (int trial = 0; trial < 10; ++trial) {
    const std::vector<float> x = random.rows({1, kPolarBlock});
    std::uint16_t codes[kPolarBlock - 1];
    const float radius = polar_encode(levels, x.data(), codes);
    double norm = 0, error = 0;
    std::vector<float> y(kPolarBlock);
    polar_decode(levels, codes, radius, y.data());
    for (std::uint32_t i = 0; i < kPolarBlock; ++i) {
      norm += double{x[i]} * x[i];
      error += std::pow(double{x[i]} - y[i], 2);
    }
    EXPECT_NEAR(radius, std::sqrt(norm), 1e-5);
    EXPECT_LT(std::sqrt(error / norm), 1e-3);
  }
}

TEST(Polar, AnglesGatherAroundTheDiagonalLevelByLevel) {
  // Variance of the density sin^n(2 angle), n = 1, 3, 7, about pi/4 (integrated numerically).
  constexpr double kVariance[] = {0.11685, 0.06129, 0.03109};
  Gaussian random(2);
  double sum[3] = {};
  constexpr int kBlocks = 8000;
  for (int b = 0; b < kBlocks; ++b) {
    double radii[kPolarBlock];
    for (double& r : radii) r = random.next();
    for (std::uint32_t level = 0, pairs = kPolarBlock / 2; level < kPolarLevels;
         ++level, pairs /= 2)
      for (std::uint32_t p = 0; p < pairs; ++p) {
        const double angle = std::atan2(radii[2 * p + 1], radii[2 * p]);
        if (level > 0) sum[level - 1] += std::pow(angle - 0.7853981633974483, 2) / pairs;
        radii[p] = std::hypot(radii[2 * p], radii[2 * p + 1]);
      }
  }
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(sum[i] / kBlocks / kVariance[i], 1, 0.05) << i;
}

TEST(Qjl, EstimatesAreUnbiasedOverDrawsAndSpreadAsPredicted) {
  const std::uint32_t dim = 64;
  Gaussian random(3);
  double spread = 0, predicted = 0;
  for (int pair = 0; pair < 20; ++pair) {
    const std::vector<float> k = random.rows({1, dim}), q = random.rows({1, dim});
    double exact = 0, kk = 0, qq = 0;
    for (std::uint32_t d = 0; d < dim; ++d) {
      exact += double{q[d]} * k[d];
      kk += double{k[d]} * k[d];
      qq += double{q[d]} * q[d];
    }
    constexpr int kDraws = 200;
    double sum = 0, squares = 0;
    for (int draw = 0; draw < kDraws; ++draw) {
      std::vector<float> signs(2 * dim), estimate(dim);
      const std::uint64_t seed = 1000 + static_cast<std::uint64_t>(draw);
      qjl_project(seed, dim, k.data(), signs.data());
      for (float& s : signs) s = s < 0 ? -1.0f : 1.0f;
      qjl_estimate(seed, dim, static_cast<float>(std::sqrt(kk)), signs.data(), estimate.data());
      double product = 0;
      for (std::uint32_t d = 0; d < dim; ++d) product += double{q[d]} * estimate[d];
      sum += product;
      squares += (product - exact) * (product - exact);
    }
    const double deviation = std::sqrt(squares / kDraws);
    EXPECT_NEAR(sum / kDraws, exact, 3.5 * deviation / std::sqrt(kDraws)) << pair;
    // Orthogonal rows keep q . k itself out of the noise: pi/2 - 1 where Gaussian ones have pi/2,
    // for the part of q that is orthogonal to k.
    spread += squares / kDraws;
    predicted += (1.5707963 - 1) / (2 * dim) * (qq * kk - exact * exact);
  }
  EXPECT_NEAR(std::sqrt(spread / predicted), 1, 0.1);
}

TEST(Qjl, APageDecodesToTheEstimateOfItsKeys) {
  const Codec& c = *find_codec("qjl").value();
  const Rows rows{16, 64};
  EXPECT_DOUBLE_EQ(effective_bits(c, Side::keys, {32, 64}), 2.25);
  EXPECT_DOUBLE_EQ(effective_bits(c, Side::values, {32, 64}), 3);
  const std::vector<float> x = Gaussian(4).rows(rows), y = round_trip(c, Side::keys, rows, x);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    double xy = 0, xx = 0;
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      xy += double{x[slot * 64 + d]} * y[slot * 64 + d];
      xx += double{x[slot * 64 + d]} * x[slot * 64 + d];
    }
    EXPECT_NEAR(xy / xx, 1, 0.15);  // the score of a key with itself
  }
}

std::vector<float> merged(const std::vector<float>& rows, std::uint32_t dim) {
  const auto tokens = static_cast<std::uint32_t>(rows.size() / dim);
  return round_trip(*find_codec("minicache").value(), Side::keys, {tokens, dim}, rows);
}

TEST(Minicache, TheDirectionLiesBetween) {
  const float a[] = {3, 0, 0}, b[] = {0, 0.5f, 0}, none[] = {0, 0, 0};
  float e[3];
  EXPECT_NEAR(shared_direction(a, b, 3, 0.5, e), std::acos(0.0), 1e-6);
  EXPECT_NEAR(e[0], std::sqrt(0.5), 1e-6);
  EXPECT_NEAR(e[1], std::sqrt(0.5), 1e-6);
  shared_direction(a, b, 3, 0.6, e);
  EXPECT_NEAR(std::atan2(e[1], e[0]), 0.6 * std::acos(0.0), 1e-6);
  EXPECT_NEAR(shared_direction(a, a, 3, 0.6, e), 0, 1e-6);
  EXPECT_FLOAT_EQ(e[0], 1);
  const float back[] = {-1, 0, 0};
  shared_direction(a, back, 3, 0.6, e);  // no plane to turn in: on the line
  EXPECT_FLOAT_EQ(e[0], -1);
  shared_direction(none, b, 3, 0.6, e);
  EXPECT_FLOAT_EQ(e[1], 1);
}

TEST(Minicache, LayersAlikeComeBackAndLengthsAlways) {
  constexpr std::uint32_t kDim = 128, kTokens = 32;
  std::vector<float> rows = Gaussian(5).rows({kTokens, kDim});
  std::vector<float> alike = rows;
  for (std::uint32_t t = 0; t < kTokens; ++t)  // three times as long in the second layer
    for (std::uint32_t d = 0; d < kDim / 2; ++d)
      alike[t * kDim + kDim / 2 + d] = 3 * alike[t * kDim + d];
  const std::vector<float> back = merged(alike, kDim);
  for (std::size_t i = 0; i < alike.size(); ++i) EXPECT_NEAR(back[i], alike[i], 0.012);
  const std::vector<float> apart = merged(rows, kDim);
  for (std::size_t i = 0; i < rows.size(); i += kDim / 2) {
    double was = 0, is = 0;
    for (std::size_t d = i; d < i + kDim / 2; ++d) {
      was += double{rows[d]} * rows[d];
      is += double{apart[d]} * apart[d];
    }
    EXPECT_NEAR(std::sqrt(is / was), 1, 2e-3);
  }
}

TEST(Minicache, TokensWhoseLayersPointApartAreKeptWhole) {
  constexpr std::uint32_t kDim = 64, kTokens = 32;
  std::vector<float> rows = Gaussian(6).rows({kTokens, kDim});
  for (float& x : rows) x = f16_to_f32(f32_to_f16(x));
  for (std::uint32_t t = 0; t < kTokens; ++t)
    for (std::uint32_t d = 0; d < kDim / 2; ++d) {
      const float x = rows[t * kDim + d];
      rows[t * kDim + kDim / 2 + d] = t == 7 || t == 30 ? -x : x + 0.125f * (d % 2);
    }
  const std::vector<float> back = merged(rows, kDim);
  for (std::uint32_t t = 0; t < kTokens; ++t) {
    bool same = true;
    for (std::uint32_t d = 0; d < kDim; ++d) same &= back[t * kDim + d] == rows[t * kDim + d];
    EXPECT_EQ(same, t == 7 || t == 30) << t;
  }
}

}  // namespace
}  // namespace quire
