// kvquant and coupled quantization under calibrations made up here.
#include "format/calibration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "format/testing.h"

namespace quire {
namespace {

constexpr Rows kRows{16, 64};

Calibration evenly_spaced(std::uint32_t bits, float reach) {
  Calibration c{CalibrationKind::kvquant, kRows.dim, 1, bits, {{}}};
  const std::uint32_t count = 1u << bits;
  for (std::uint32_t i = 0; i < count; ++i)
    c.lanes[0].levels.push_back(-1 + (2 * static_cast<float>(i) + 1) / static_cast<float>(count));
  c.lanes[0].zero.assign(kRows.dim, 0.0f);
  c.lanes[0].range.assign(kRows.dim, reach);
  return c;
}

std::vector<float> kvquant(const Calibration& c, Side side, const std::vector<float>& x) {
  std::vector<std::byte> page(kvquant_bytes(c, side, kRows));
  kvquant_encode(c, c.lanes[0], side, kRows, x.data(), page.data());
  std::vector<float> y(x.size());
  kvquant_decode(c, c.lanes[0], side, kRows, page.data(), y.data());
  return y;
}

TEST(Kvquant, ManyLevelsAndWideThresholdsGiveTheRowsBack) {
  const Calibration c = evenly_spaced(8, 6);
  const std::vector<float> x = Gaussian(1).rows(kRows);
  for (const Side side : {Side::keys, Side::values}) {
    const std::vector<float> y = kvquant(c, side, x);
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 6.0 / 256 + 1e-3);
  }
}

TEST(Kvquant, APlantedOutlierComesBackExactlyAndCostsTheOthersNothing) {
  const Calibration c = evenly_spaced(3, 3);
  std::vector<float> x = Gaussian(2).rows(kRows);
  for (float& v : x) v = std::clamp(v, -2.9f, 2.9f);
  for (const Side side : {Side::keys, Side::values}) {
    std::vector<float> planted = x;
    planted[5 * 64 + 9] = -250.5f;
    const std::vector<float> y = kvquant(c, side, planted);
    EXPECT_EQ(y[5 * 64 + 9], -250.5f);
    for (std::size_t i = 0; i < x.size(); ++i)
      if (i != 5 * 64 + 9) {
        ASSERT_NEAR(y[i], x[i], 3.0 / 8 + 2e-3) << i;
      }
  }
}

TEST(Kvquant, MoreOutliersThanFitAreHeldAtTheEdge) {
  const Calibration c = evenly_spaced(3, 3);
  std::vector<float> x(16 * 64, 0.0f);
  for (int d = 0; d < 5; ++d) x[d] = static_cast<float>(50 + d);
  const std::vector<float> y = kvquant(c, Side::keys, x);
  EXPECT_EQ(kvquant_sparse_max(64), 1u);
  EXPECT_EQ(y[4], 54);  // the farthest
  for (int d = 0; d < 4; ++d) EXPECT_FLOAT_EQ(y[d], 3 * 0.875f);
}

// Keys are stored before RoPE: turned after decoding they are as near to the turned keys as they
// were to begin with, at any position.
TEST(Kvquant, RopeAfterDecodingKeepsTheErrorAtLargePositions) {
  const Calibration c = evenly_spaced(3, 3);
  const std::vector<float> x = Gaussian(3).rows(kRows), y = kvquant(c, Side::keys, x);
  for (const double position : {1.0, 1e5}) {
    double before = 0, after = 0;
    for (std::size_t slot = 0; slot < 16; ++slot)
      for (std::size_t i = 0; i < 32; ++i) {
        const double angle = position * std::pow(1e5, -2.0 * static_cast<double>(i) / 64);
        const double a = double{y[slot * 64 + i]} - x[slot * 64 + i];
        const double b = double{y[slot * 64 + i + 32]} - x[slot * 64 + i + 32];
        before += a * a + b * b;
        after += std::pow(a * std::cos(angle) - b * std::sin(angle), 2) +
                 std::pow(a * std::sin(angle) + b * std::cos(angle), 2);
      }
    EXPECT_NEAR(after / before, 1, 1e-6);
  }
}

Calibration coupled(std::uint32_t channels, std::uint32_t bits,
                    const std::vector<float>& centroids) {
  return {CalibrationKind::coupled, kRows.dim, channels, bits, {{{}, {}, {}, centroids}}};
}

std::vector<float> cq(const Calibration& c, const std::vector<float>& x) {
  std::vector<std::byte> page(cq_bytes(c, kRows));
  cq_encode(c, c.lanes[0], kRows, x.data(), page.data());
  std::vector<float> y(x.size());
  cq_decode(c, c.lanes[0], kRows, page.data(), y.data());
  return y;
}

TEST(Coupled, CentroidsComeBackExactlyAtEveryWidth) {
  for (const auto& [channels, bits, wanted_bits] :
       {std::tuple{2u, 8u, 4.0}, {4u, 8u, 2.0}, {8u, 8u, 1.0}, {4u, 5u, 1.25}}) {
    Gaussian random(channels);
    std::vector<float> centroids((std::size_t{1} << bits) * kRows.dim);
    for (float& v : centroids) v = random.next();
    const Calibration c = coupled(channels, bits, centroids);
    std::vector<float> x(16 * 64);
    Random pick(7);
    for (std::uint32_t slot = 0; slot < 16; ++slot)
      for (std::uint32_t g = 0; g < 64 / channels; ++g) {
        const std::size_t code = pick.below(1u << bits);
        for (std::uint32_t j = 0; j < channels; ++j)
          x[slot * 64 + g * channels + j] =
              centroids[((std::size_t{g} << bits) + code) * channels + j];
      }
    EXPECT_EQ(cq(c, x), x);
    EXPECT_DOUBLE_EQ(8.0 * static_cast<double>(cq_bytes(c, {64, 64})) / (64 * 64), wanted_bits);
  }
}

TEST(Calibration, FilesRoundTripAndDamageIsNamed) {
  Calibration c = evenly_spaced(3, 2);
  c.lanes.push_back(c.lanes[0]);
  const std::string file = serialize_calibration(c);
  const auto parse = [](const std::string& s) {
    return parse_calibration(std::as_bytes(std::span(s)));
  };
  ASSERT_TRUE(parse(file).ok());
  EXPECT_EQ(serialize_calibration(parse(file).value()), file);
  for (std::size_t length = 0; length < file.size(); length += 7)
    EXPECT_FALSE(parse(file.substr(0, length)).ok());
  std::string broken = file;
  broken[8] = 9;
  EXPECT_NE(parse(broken).error().message.find("kind 9"), std::string::npos);
  broken = file;
  const float nan = std::nanf("");
  std::memcpy(&broken[28], &nan, 4);
  EXPECT_NE(parse(broken).error().message.find("finite"), std::string::npos);
  broken = file;
  const float top = 5;
  std::memcpy(&broken[28], &top, 4);
  EXPECT_NE(parse(broken).error().message.find("ascend"), std::string::npos);
}

}  // namespace
}  // namespace quire
