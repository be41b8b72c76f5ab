#include "engine/nucleus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "base/random.h"

namespace quire {
namespace {

// The definition: sort everything, take from the front until the share is there.
struct Plain {
  explicit Plain(std::span<const float> scaled) {
    for (TokenId t = 0; t < scaled.size(); ++t)
      if (scaled[t] > -100) order.push_back(t);
    std::stable_sort(order.begin(), order.end(),
                     [&](TokenId a, TokenId b) { return scaled[a] > scaled[b]; });
    for (const TokenId t : order)
      before.push_back(before.back() + std::exp(static_cast<double>(scaled[t])));
  }
  std::vector<TokenId> order;        // best first
  std::vector<double> before = {0};  // mass of the first so many
};

std::vector<TokenId> sorted(std::span<const TokenId> tokens) {
  std::vector<TokenId> out(tokens.begin(), tokens.end());
  std::ranges::sort(out);
  return out;
}

std::vector<float> less_the_largest(std::vector<float> values) {
  const float max = *std::ranges::max_element(values);
  for (float& v : values) v -= max;
  return values;
}

// Distributions of every steepness, with equals and impossible tokens among them.
std::vector<float> random_values(Random& random) {
  const std::size_t shapes[] = {1, 2, 60, 70, 500, 5000};
  std::vector<float> values(shapes[random.below(6)]);
  const double spread = std::pow(10, 3 * random.unit() - 2), power = 1 + 6 * random.unit();
  for (float& v : values)
    v = static_cast<float>(-5 * spread * std::pow(-std::log(random.unit() + 1e-9), 1 / power));
  if (random.chance(0.4))
    for (float& v : values) v = std::round(v * 4) / 4;
  if (random.chance(0.3))
    for (float& v : values)
      if (random.chance(0.5)) v = -INFINITY;
  values[random.below(values.size())] = static_cast<float>(spread * random.unit());
  return less_the_largest(std::move(values));
}

TEST(Nucleus, KeepsWhatThePlainDefinitionKeeps) {
  Random random(1);
  Nucleus nucleus(vector_kernels(best_isa()), 5000);
  std::set<std::size_t> sizes;
  for (int round = 0; round < 3000; ++round) {
    const std::vector<float> values = random_values(random);
    const Plain plain(values);
    // A share in the middle of a token's weight, so that rounding decides nothing.
    const std::size_t kept = random.below(plain.order.size());
    const double weight = plain.before[kept + 1] - plain.before[kept];
    if (weight < 1e-4 * plain.before.back()) continue;
    nucleus.keep_mass(values, plain.before[kept] + weight / 2);
    const std::vector<TokenId> expected(plain.order.begin(), plain.order.begin() + kept + 1);
    ASSERT_EQ(sorted(nucleus.tokens()), sorted(expected)) << "round " << round;
    for (std::size_t i = 0; i < nucleus.tokens().size(); ++i)
      ASSERT_EQ(nucleus.values()[i], values[nucleus.tokens()[i]]);
    sizes.insert(kept + 1);
  }
  EXPECT_EQ(*sizes.begin(), 1u);
  EXPECT_GT(*sizes.rbegin(), 1000u);
  EXPECT_GT(sizes.size(), 100u);
}

TEST(Nucleus, BestFirstAsSortingAllWould) {
  Random random(3);
  Nucleus nucleus(vector_kernels(best_isa()), 5000);
  for (int round = 0; round < 1000; ++round) {
    const std::vector<float> values = random_values(random);
    std::vector<TokenId> expected(values.size());
    std::iota(expected.begin(), expected.end(), 0u);
    std::ranges::stable_sort(expected, [&](TokenId a, TokenId b) { return values[a] > values[b]; });
    const std::size_t count = 1 + random.below(random.chance(0.5) ? 100 : 6000);
    expected.resize(std::min(count, expected.size()));
    nucleus.keep_best(values, count);
    ASSERT_TRUE(std::ranges::equal(nucleus.tokens(), expected)) << "round " << round;
  }
}

TEST(Nucleus, MoreThanThereIsIsAllOfIt) {
  Nucleus nucleus(vector_kernels(best_isa()), 300);
  std::vector<float> values(300, -3);
  values[7] = 0;
  values[9] = -INFINITY;
  nucleus.keep_mass(values, 1e9);
  EXPECT_EQ(nucleus.tokens().size(), 299u);
  nucleus.keep_mass(values, 1e-30);
  EXPECT_EQ(sorted(nucleus.tokens()), std::vector<TokenId>{7});
  nucleus.keep_mass(std::vector<float>(300, -INFINITY), 1);
  EXPECT_TRUE(nucleus.tokens().empty());
}

TEST(Nucleus, AboveAFloorTheFloorIncluded) {
  Nucleus nucleus(vector_kernels(best_isa()), 1000);
  std::vector<float> values(1000, -9);
  values[0] = values[500] = -2;
  values[63] = 0;
  values[999] = -2.001f;
  nucleus.keep_above(values, -2);
  EXPECT_EQ(sorted(nucleus.tokens()), (std::vector<TokenId>{0, 63, 500}));
  nucleus.keep_above(-1);
  EXPECT_EQ(sorted(nucleus.tokens()), (std::vector<TokenId>{63}));
}

// The order decides what a draw gives, so it may not depend on the machine.
TEST(Nucleus, TheOrderIsTheSameOnEveryInstructionSet) {
  Random random(2);
  Nucleus fast(vector_kernels(best_isa()), 5000), scalar(vector_kernels(Isa::scalar), 5000);
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> values = random_values(random);
    double total = 0;
    for (const float v : values) total += std::exp(static_cast<double>(v));
    const double mass = total * random.unit();
    fast.keep_mass(values, mass);
    scalar.keep_mass(values, mass);
    ASSERT_TRUE(std::ranges::equal(fast.tokens(), scalar.tokens())) << "round " << round;
  }
}

}  // namespace
}  // namespace quire
