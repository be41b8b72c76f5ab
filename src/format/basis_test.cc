#include "format/basis.h"

#include <gtest/gtest.h>

#include <cmath>

#include "format/testing.h"

namespace quire {
namespace {

constexpr Basis kRotations[] = {Basis::hadamard, Basis::signed_hadamard};

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

TEST(Basis, ThereAndBackIsNothingAndScoresAreKept) {
  for (const std::uint32_t dim : {32u, 64u, 80u, 96u, 128u, 256u, 576u})
    for (const Basis basis : kRotations) {
      Gaussian random(dim);
      const std::vector<float> q = random.rows({1, dim}), k = random.rows({1, dim});
      std::vector<float> q2 = q, k2 = k;
      to_basis(basis, dim, q2.data());
      to_basis(basis, dim, k2.data());
      EXPECT_NEAR(dot(q2, k2), dot(q, k), 1e-5 * std::sqrt(dot(q, q) * dot(k, k)));
      from_basis(basis, dim, k2.data());
      for (std::uint32_t d = 0; d < dim; ++d) EXPECT_NEAR(k2[d], k[d], 1e-6);
    }
}

TEST(Basis, OneChannelBecomesEveryChannelOfItsPowerOfTwo) {
  for (const auto& [dim, size] : {std::pair{64u, 64u}, {96u, 32u}, {256u, 256u}}) {
    std::vector<float> x(dim);
    x[5] = 1;
    to_basis(Basis::hadamard, dim, x.data());
    for (std::uint32_t d = 0; d < dim; ++d)
      EXPECT_FLOAT_EQ(std::fabs(x[d]), d < size ? 1 / std::sqrt(static_cast<float>(size)) : 0);
  }
}

TEST(Basis, SignsAreMixedAndFixed) {
  std::vector<float> x(256, 1.0f), y = x;
  flip_signs(1, 256, x.data());
  flip_signs(1, 256, y.data());
  EXPECT_EQ(x, y);
  int negative = 0;
  for (const float v : x) negative += v < 0;
  EXPECT_NEAR(negative, 128, 40);
  flip_signs(2, 256, y.data());
  EXPECT_NE(y, std::vector<float>(256, 1.0f));
}

// A stored key may be moved to another position: out of the basis, turned, and back into it.
TEST(Basis, AKeyTurnedInItsBasisIsTheTurnedKey) {
  const std::uint32_t dim = 64;
  const auto turn = [&](std::vector<float>& x, double by) {
    for (std::uint32_t i = 0; i < dim / 2; ++i) {
      const double angle = by * std::pow(1e5, -2.0 * i / dim), a = x[i], b = x[i + dim / 2];
      x[i] = static_cast<float>(a * std::cos(angle) - b * std::sin(angle));
      x[i + dim / 2] = static_cast<float>(a * std::sin(angle) + b * std::cos(angle));
    }
  };
  for (const Basis basis : kRotations) {
    std::vector<float> key = Gaussian(3).rows({1, dim}), stored = key;
    to_basis(basis, dim, stored.data());
    from_basis(basis, dim, stored.data());
    turn(stored, 1000);
    to_basis(basis, dim, stored.data());
    turn(key, 1000);
    to_basis(basis, dim, key.data());
    for (std::uint32_t d = 0; d < dim; ++d) EXPECT_NEAR(stored[d], key[d], 1e-5);
  }
}

}  // namespace
}  // namespace quire
