#include "lab/formats/calibrate.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/testing.h"
#include "kv/layout.h"

namespace quire {
namespace {

const Codec& codec(const char* name) { return *find_codec(name).value(); }
TinyOptions llama() { return {.type = DType::q8_0, .layers = 3, .head_dim = 64}; }

TEST(Calibrate, CentroidsThatAreTheDataLoseNothing) {
  constexpr std::uint32_t kDim = 64, kCount = 1024;
  Random random(3);
  std::vector<float> patterns(256 * kDim), rows;
  for (float& x : patterns) x = static_cast<float>(random.below(1000)) / 64;
  for (std::uint32_t i = 0; i < kCount; ++i)
    rows.insert(rows.end(), &patterns[i / 4 * kDim], &patterns[i / 4 * kDim] + kDim);
  for (const char* name : {"cq-1", "cq-2", "cq-4"}) {
    Calibration c = plain_calibration(codec(name), kDim);
    c.lanes = {fit_coupled(codec(name), rows, kDim)};
    const Rows page{32, kDim};
    std::vector<std::byte> bytes(codec_bytes(codec(name), Side::keys, page));
    std::vector<float> back(32 * kDim);
    encode_calibrated(c, c.lanes[0], Side::keys, page, rows.data(), bytes.data());
    decode_calibrated(c, c.lanes[0], Side::keys, page, bytes.data(), back.data());
    EXPECT_TRUE(std::equal(back.begin(), back.end(), rows.begin())) << name;
  }
}

TEST(Calibrate, KeysAreMeasuredByChannelAndLevelsFollowTheData) {
  constexpr std::uint32_t kDim = 32, kCount = 4000;
  Random random(4);
  std::vector<float> rows(kDim * kCount);
  for (std::uint32_t i = 0; i < kCount; ++i)  // channel d lies evenly in [d, 3 d + 2]
    for (std::uint32_t d = 0; d < kDim; ++d)
      rows[i * kDim + d] =
          static_cast<float>(d + (2.0 * d + 2) * static_cast<double>(random.below(10000)) / 9999);
  const LaneCalibration lane = fit_kvquant(codec("kvquant-3"), Side::keys, rows, kDim);
  for (std::uint32_t d = 0; d < kDim; ++d) {
    EXPECT_NEAR(lane.zero[d], 2.0 * d + 1, 0.05 * (d + 1)) << d;
    EXPECT_NEAR(lane.range[d], 0.99 * (d + 1), 0.05 * (d + 1)) << d;
  }
  ASSERT_EQ(lane.levels.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(lane.levels[i], -0.875 + 0.25 * i, 0.03) << i;
}

TEST(Calibrate, AModelsCalibrationIsPartOfItsKeysAndIsAskedFor) {
  TinyRuntime exact(llama(), {.kv_format = "f16"});
  Random random(5);
  std::vector<TokenId> text(300);
  for (TokenId& t : text) t = 'a' + static_cast<TokenId>(random.below(26));
  const StoragePolicy way = find_format("kvquant-3").value();
  ASSERT_FALSE(exact->check_storage(way).ok());
  EXPECT_NE(exact->check_storage(way).error().message.find("quire calibrate"), std::string::npos);

  std::size_t told = 0;
  const auto made = calibrate(*exact,
                              {.codec = &codec("kvquant-3"),
                               .window = 128,
                               .progress = [&](std::size_t done, std::size_t) { told = done; }},
                              text);
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_EQ(made.value().lanes.size(), 3u * 2 * 2);
  EXPECT_EQ(told, 12u);
  TinyRuntime one(llama(), {.kv_format = "f16", .calibrations = {made.value()}});
  EXPECT_TRUE(one->check_storage(way).ok());
  Calibration other = made.value();
  other.digest[0] ^= 1;
  const auto key = [&](const Calibration& c) {
    Geometry g = make_geometry(one->config(), 32, way);
    EXPECT_TRUE(use_calibrations(g, {&c, 1}).ok());
    return layout_digest(g);
  };
  EXPECT_NE(key(made.value()), key(other));
  EXPECT_EQ(key(made.value()), key(made.value()));
}

}  // namespace
}  // namespace quire
