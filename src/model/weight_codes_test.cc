// Codes as a GPU keeps them, read here as its lanes read them: they must be the file's numbers.
#include "model/weight_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/half.h"
#include "base/random.h"

namespace quire {
namespace {

constexpr DType kSymmetric[] = {DType::q4_0}, kFour[] = {DType::q4_0, DType::q4_1},
                kFourWide[] = {DType::q4_k, DType::u4, DType::u4_bf16},
                kEight[] = {DType::q8_0, DType::q5_0, DType::q5_1, DType::iq4_nl, DType::q4_1},
                kEightWide[] = {DType::q5_k, DType::q8_0, DType::q4_k, DType::iq4_xs, DType::mxfp4};

// A tensor row with scales such as weights have.
std::vector<std::byte> random_row(DType type, std::uint32_t width, Random& random) {
  std::vector<std::byte> row(row_bytes(type, width));
  for (std::byte& b : row) b = static_cast<std::byte>(random.below(256));
  const DTypeInfo& info = dtype_info(type);
  for (std::size_t at = 0; at < row.size(); at += info.block_bytes)
    for (const std::size_t high : {at + 1, at + 3})  // of f16: up to 2^-8
      row[high] = (row[high] & std::byte{0x83}) | std::byte{0x18};
  if (type == DType::mxfp4)
    for (std::size_t at = 0; at < row.size(); at += info.block_bytes)
      row[at] = static_cast<std::byte>(110 + random.below(10));
  return row;
}

// The operand of 16 outputs by 16 inputs that a lane makes: outputs g, g + 8, g, g + 8, of inputs 2t
// and 2t + 1, and of those 8 further on.
float in_lane(const std::vector<std::byte>& bytes, WeightCodes kind, std::uint32_t inputs,
              std::uint32_t output, std::uint32_t k) {
  const std::uint32_t unit_bytes = coded_unit_bytes(kind.bits, kind.form);
  const std::byte* unit =
      &bytes[(std::size_t{output / 16} * ((inputs + 127) / 128) + k / 128) * unit_bytes];
  const std::uint32_t lane = output % 8 * 4 + k % 8 / 2, second = output % 16 / 8,
                      byte = k % 2 * 2 + k % 16 / 8, step = k % 128 / 16;
  std::uint32_t words[4], code;
  if (kind.bits == 4) {
    std::memcpy(words, unit + step / 4 * 512 + lane * 16, 16);
    code = words[step % 4] >> 8 * byte >> 4 * second & 15;
  } else {
    std::memcpy(words, unit + step / 2 * 512 + lane * 16, 16);
    code = words[step % 2 * 2 + second] >> 8 * byte & 255;
  }
  const std::byte* pairs = unit + 16 * 128 * kind.bits / 8;
  const std::uint32_t pair = (second * 8 + lane / 4) * 4 + k % 128 / 32;
  float of[2];
  std::uint16_t halves[2];
  std::memcpy(halves, pairs + pair * 4, 4);
  if (kind.form == CodeForm::wide) {
    std::memcpy(of, pairs + pair * 8, 8);
  } else if (kind.form == CodeForm::symmetric) {
    of[0] = bf16_to_f32(halves[0]) + bf16_to_f32(halves[1]), of[1] = -8 * of[0];
  } else {
    of[0] = f16_to_f32(halves[0]) / (kind.bits == 4 ? 8 : 1), of[1] = f16_to_f32(halves[1]);
  }
  return std::fma(of[0], static_cast<float>(code), of[1]);
}

TEST(WeightCodes, LanesReadTheNumbersOfTheFile) {
  Random random(3);
  for (const std::span<const DType> types :
       {std::span<const DType>(kSymmetric), std::span<const DType>(kFour),
        std::span<const DType>(kFourWide), std::span<const DType>(kEight),
        std::span<const DType>(kEightWide)})
    for (const std::uint32_t inputs : {256u, 512u, 768u, 64u, 576u}) {
      const WeightCodes kind = code_kind(types);
      constexpr std::uint32_t kOutputs = 48;
      WeightCoder coder(kind, kOutputs, inputs);
      std::vector<std::vector<float>> rows(kOutputs, std::vector<float>(inputs));
      for (std::uint32_t o = 0; o < kOutputs; ++o) {
        const DType type = types[o % types.size()];
        if (inputs % dtype_info(type).block_elements != 0 || o == 5) continue;  // stays zero
        const auto row = random_row(type, inputs, random);
        dequantize_row(type, row.data(), inputs, rows[o].data());
        ASSERT_TRUE(coder.add(o, type, row.data()));
      }
      for (std::uint32_t o = 0; o < kOutputs; ++o)
        for (std::uint32_t k = 0; k < inputs; ++k)
          ASSERT_EQ(in_lane(coder.bytes(), kind, inputs, o, k), rows[o][k])
              << kind.bits << " bits, form " << static_cast<int>(kind.form) << ", output " << o
              << ", input " << k;
    }
}

TEST(WeightCodes, TheKindHoldsAllTypesOrThereIsNone) {
  const auto is = [](std::span<const DType> types, std::uint32_t bits,
                     CodeForm form = CodeForm::affine) {
    const WeightCodes kind = code_kind(types);
    return kind.bits == bits && kind.form == form;
  };
  EXPECT_TRUE(is(kSymmetric, 4, CodeForm::symmetric));
  EXPECT_TRUE(is(kFour, 4));
  EXPECT_TRUE(is(kFourWide, 4, CodeForm::wide));
  EXPECT_TRUE(is(kEight, 8));
  EXPECT_TRUE(is(kEightWide, 8, CodeForm::wide));
  const DType mixed[] = {DType::q4_1, DType::q6_k}, plain[] = {DType::bf16};
  EXPECT_TRUE(is(mixed, 0));
  EXPECT_TRUE(is(plain, 0));
}

TEST(WeightCodes, ScalesThatTheKindCannotHoldAreRefused) {
  const auto adds = [](WeightCodes kind, DType type, float scale) {
    std::vector<std::byte> row(row_bytes(type, 32));
    const std::uint16_t half = f32_to_f16(scale);
    std::memcpy(row.data(), &half, 2);
    return WeightCoder(kind, 16, 32).add(0, type, row.data());
  };
  const WeightCodes four{nullptr, 4, CodeForm::affine}, four_wide{nullptr, 4, CodeForm::wide},
      eight{nullptr, 8, CodeForm::affine}, symmetric{nullptr, 4, CodeForm::symmetric};
  EXPECT_TRUE(adds(four, DType::q4_0, -0.2f));
  EXPECT_FALSE(adds(four, DType::q4_0, 0.25f));
  EXPECT_TRUE(adds(four_wide, DType::q4_0, 0.25f));
  EXPECT_TRUE(adds(symmetric, DType::q4_0, 60000));
  EXPECT_FALSE(adds(symmetric, DType::q8_0, 1));
  EXPECT_TRUE(adds(eight, DType::q8_0, 100));
  EXPECT_FALSE(adds(eight, DType::q8_0, 1000));  // 128 times that is no f16
  for (const WeightCodes kind : {four, four_wide, eight, symmetric}) {
    EXPECT_FALSE(adds(kind, DType::q4_0, HUGE_VALF));
    EXPECT_FALSE(adds(kind, DType::q4_0, std::nanf("")));
  }
}

TEST(WeightCodes, EveryWeightHasAPlaceOfItsOwn) {
  for (const WeightCodes kind :
       {WeightCodes{nullptr, 4, CodeForm::affine}, {nullptr, 8, CodeForm::wide}}) {
    std::set<std::pair<std::size_t, std::uint32_t>> places;
    for (std::uint32_t o = 0; o < 32; ++o)
      for (std::uint32_t k = 0; k < 256; ++k) {
        const CodedPlace at = coded_at(kind, 256, o, k);
        ASSERT_LT(at.byte, coded_bytes(kind, 32, 256));
        ASSERT_TRUE(places.emplace(at.byte, at.shift).second);
      }
  }
}

}  // namespace
}  // namespace quire
