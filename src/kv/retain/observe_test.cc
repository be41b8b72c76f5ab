#include "kv/retain/observe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kv/retain/testing.h"

namespace quire {
namespace {
constexpr std::uint32_t kDim = 6, kSlots = 40;
constexpr float kScale = 0.4f;

// The whole matrix of attention, by the book.
std::vector<double> by_the_book(const std::vector<float>& queries, const std::vector<float>& keys) {
  std::vector<double> a(kSlots * kSlots);
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    double sum = 0;
    for (std::uint32_t j = 0; j <= i; ++j) {
      double z = 0;
      for (std::uint32_t c = 0; c < kDim; ++c) z += queries[i * kDim + c] * keys[j * kDim + c];
      sum += a[i * kSlots + j] = std::exp(kScale * z);
    }
    for (std::uint32_t j = 0; j <= i; ++j) a[i * kSlots + j] /= sum;
  }
  return a;
}

class Observe : public testing::Test {
 protected:
  QueryRun run(std::uint32_t first, std::uint32_t count) const {
    return {std::span(queries).subspan(first * kDim, count * kDim), count, first, kScale};
  }
  std::vector<float> queries = noise(kSlots * kDim, 1), keys = noise(kSlots * kDim, 2);
  std::vector<double> book = by_the_book(queries, keys);
};

TEST_F(Observe, WindowMassIsTheMeanOfTheLastRows) {
  std::vector<float> mass(kSlots);
  add_window_mass(run(kSlots - 7, 7), keys, mass);
  for (std::uint32_t j = 0; j < kSlots; ++j) {
    double mean = 0;
    for (std::uint32_t i = kSlots - 7; i < kSlots; ++i) mean += book[i * kSlots + j] / 7;
    EXPECT_NEAR(mass[j], mean, 1e-6);
  }
}

TEST_F(Observe, TotalMassFromLogSumsIsTheSumOfColumnsInAnyChunks) {
  for (std::uint32_t chunk : {1u, 7u, 20u, kSlots}) {
    std::vector<float> mass(kSlots);
    for (std::uint32_t first = 0; first < kSlots; first += chunk) {
      const std::uint32_t count = std::min(chunk, kSlots - first);
      std::vector<float> lse(count);
      log_sum_exp(run(first, count), keys, lse);
      add_total_mass(run(first, count), lse, keys, mass);
    }
    for (std::uint32_t j = 0; j < kSlots; ++j) {
      double column = 0;
      for (std::uint32_t i = 0; i < kSlots; ++i) column += book[i * kSlots + j];
      EXPECT_NEAR(mass[j], column, 1e-4) << chunk;
    }
  }
}

// One chunk as long as the context: the softmax is over context and repetition together.
TEST_F(Observe, PeakMassIsTheMostAnyRepeatingQueryGives) {
  const std::vector<float> repeat = noise(9 * kDim, 3), own = noise(9 * kDim, 4);
  std::vector<float> peak(kSlots);
  raise_peak_mass({repeat, 9, 0, kScale}, {keys, 4, 0, kSlots}, own, peak);
  std::vector<float> all = keys;
  all.insert(all.end(), own.begin(), own.end());
  for (std::uint32_t j = 0; j < kSlots; ++j) {
    float most = 0;
    for (std::uint32_t i = 0; i < 9; ++i) {
      std::vector<float> row(kSlots + i + 1);
      attention(std::span(repeat).subspan(i * kDim, kDim), kScale, all, row);
      most = std::max(most, row[j]);
    }
    EXPECT_NEAR(peak[j], most, 1e-6);
  }
}

TEST_F(Observe, PeakMassOfALaterChunkSeesSinksAndTheChunkOnly) {
  const std::vector<float> repeat = noise(2 * kDim, 3), own = noise(2 * kDim, 4);
  std::vector<float> peak(kSlots), moved(kSlots);
  raise_peak_mass({repeat, 2, 0, kScale}, {keys, 4, 20, 30}, own, peak);
  std::vector<float> other = keys;
  for (std::uint32_t s = 4; s < kSlots; ++s)
    if (s < 20 || s >= 30)
      for (std::uint32_t c = 0; c < kDim; ++c) other[s * kDim + c] += 9;
  raise_peak_mass({repeat, 2, 0, kScale}, {other, 4, 20, 30}, own, moved);
  EXPECT_EQ(peak, moved);
  for (std::uint32_t s = 0; s < kSlots; ++s) EXPECT_EQ(peak[s] > 0, s >= 20 && s < 30) << s;
  other[0] += 1;  // a sink
  std::vector<float> sink(kSlots);
  raise_peak_mass({repeat, 2, 0, kScale}, {other, 4, 20, 30}, own, sink);
  EXPECT_NE(peak, sink);
}

TEST(CountBelow, CountsWhatIsUnderAnEqualShare) {
  std::vector<float> counts = {1, 1, 1, 1};
  count_below(std::vector<float>{0.25f, 0.7f, 0.04f, 0.01f}, counts);
  EXPECT_EQ(counts, (std::vector<float>{1, 1, 2, 2}));
}

TEST(QueryMoments, AddUpOverChunksAndMatchTheDefinition) {
  const std::uint32_t n = 50;
  const std::vector<float> rows = noise(n * kDim, 9);
  QueryMoments whole(kDim), first(kDim), second(kDim);
  for (std::uint32_t i = 0; i < n; ++i) {
    const auto row = std::span(rows).subspan(i * kDim, kDim);
    whole.add(row);
    (i < 13 ? first : second).add(row);
  }
  first.add(second);
  EXPECT_EQ(first.count(), n);
  const std::vector<double> one(kDim / 2, 1.0), zero(kDim / 2, 0.0);
  std::vector<float> mean(kDim), covariance(kDim * kDim), mean2(kDim), covariance2(kDim * kDim);
  whole.turned(one, zero, mean, covariance);
  first.turned(one, zero, mean2, covariance2);
  for (std::uint32_t i = 0; i < kDim; ++i) {
    EXPECT_NEAR(mean[i], mean2[i], 1e-6);
    for (std::uint32_t j = 0; j < kDim; ++j) {
      double sum = 0;
      for (std::uint32_t r = 0; r < n; ++r)
        sum += (rows[r * kDim + i] - mean[i]) * (rows[r * kDim + j] - mean[j]);
      EXPECT_NEAR(covariance[i * kDim + j], sum / n, 1e-5);
      EXPECT_NEAR(covariance[i * kDim + j], covariance2[i * kDim + j], 1e-6);
    }
  }
}

// Moments turned to one position are the moments of queries turned to it.
TEST(QueryMoments, TurnAsTheQueriesDo) {
  const std::uint32_t n = 30, position = 17;
  const std::vector<double> frequencies = {1.0, 0.3, 0.01};
  std::vector<double> c(3), s(3);
  mean_rotation(frequencies, position, 1, c, s);
  QueryMoments before(kDim), after(kDim);
  std::vector<float> rows = noise(n * kDim, 9);
  for (std::uint32_t r = 0; r < n; ++r) {
    const auto row = std::span(rows).subspan(r * kDim, kDim);
    before.add(row);
    std::vector<float> turned(kDim);
    for (std::uint32_t i = 0; i < 3; ++i) {
      const double angle = position * frequencies[i], a = row[i], b = row[i + 3];
      turned[i] = static_cast<float>(std::cos(angle) * a - std::sin(angle) * b);
      turned[i + 3] = static_cast<float>(std::sin(angle) * a + std::cos(angle) * b);
    }
    after.add(turned);
  }
  std::vector<float> mean(kDim), covariance(kDim * kDim), mean2(kDim), covariance2(kDim * kDim);
  before.turned(c, s, mean, covariance);
  after.turned(std::vector<double>(3, 1.0), std::vector<double>(3, 0.0), mean2, covariance2);
  for (std::uint32_t i = 0; i < kDim; ++i) EXPECT_NEAR(mean[i], mean2[i], 1e-5);
  for (std::uint32_t i = 0; i < kDim * kDim; ++i) EXPECT_NEAR(covariance[i], covariance2[i], 1e-5);
}

TEST(MeanRotation, AveragesOverThePositionsAhead) {
  std::vector<double> c(1), s(1);
  mean_rotation(std::vector<double>{M_PI / 2}, 4, 4, c, s);  // four quarter turns
  EXPECT_NEAR(c[0], 0, 1e-9);
  EXPECT_NEAR(s[0], 0, 1e-9);
  mean_rotation(std::vector<double>{M_PI / 2}, 5, 1, c, s);
  EXPECT_NEAR(s[0], 1, 1e-9);
}

}  // namespace
}  // namespace quire
