#include "format/fp8.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace quire {
namespace {

TEST(Fp8, EveryCodeThatIsANumberSurvives) {
  int numbers = 0;
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<std::uint8_t>(b);
    if (const float x = e4m3_to_f32(byte); !std::isnan(x)) {
      EXPECT_EQ(f32_to_e4m3(x), byte);
      ++numbers;
    }
    const float y = e5m2_to_f32(byte);
    EXPECT_TRUE(!std::isfinite(y) || f32_to_e5m2(y) == byte) << b;
  }
  EXPECT_EQ(numbers, 254);
}

TEST(Fp8, SaturatesAndRoundsTiesToEven) {
  const auto e4m3 = [](float x) { return e4m3_to_f32(f32_to_e4m3(x)); };
  const auto e5m2 = [](float x) { return e5m2_to_f32(f32_to_e5m2(x)); };
  EXPECT_EQ(e4m3(1000), 448);
  EXPECT_EQ(e4m3(-INFINITY), -448);
  EXPECT_EQ(e5m2(1e9f), 57344);
  EXPECT_EQ(e4m3(1.0625f), 1);
  EXPECT_EQ(e4m3(1.1875f), 1.25f);
  EXPECT_EQ(e5m2(1.125f), 1);
  EXPECT_EQ(e5m2(1.375f), 1.5f);
  EXPECT_EQ(e4m3(0x1p-9f), 0x1p-9f);
  EXPECT_EQ(e4m3(0x1p-10f), 0);  // a tie
  EXPECT_EQ(e4m3(0x1.8p-10f), 0x1p-9f);
  EXPECT_EQ(e5m2(0x1p-16f), 0x1p-16f);
  EXPECT_TRUE(std::isnan(e4m3(std::nanf(""))));
  EXPECT_TRUE(std::signbit(e4m3(-0.0f)));
}

TEST(Fp8, TheNearestNumberIsChosen) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto x =
        static_cast<float>((random.unit() - 0.5) * std::pow(2.0, random.unit() * 30 - 12));
    float best = INFINITY;
    for (int b = 0; b < 256; ++b)
      if (const float y = e4m3_to_f32(static_cast<std::uint8_t>(b)); std::fabs(y - x) < best)
        best = std::fabs(y - x);
    ASSERT_EQ(std::fabs(e4m3_to_f32(f32_to_e4m3(x)) - x), best) << x;
  }
}

TEST(Fp8, ScaleIsTheSmallestPowerOfTwoThatFits) {
  for (const float largest : {448.0f, 449.0f, 1.0f, 3.5f, 3.51f, 65504.0f, 6e-8f, 0x1p-126f}) {
    const float s = power_of_two(scale_exponent(largest, kE4m3Max));
    EXPECT_LE(largest / s, 448) << largest;
    EXPECT_TRUE(s == 0x1p-126f || largest / (s / 2) > 448) << largest;
  }
  EXPECT_EQ(power_of_two(scale_exponent(0, kE4m3Max)), 1);
}

}  // namespace
}  // namespace quire
