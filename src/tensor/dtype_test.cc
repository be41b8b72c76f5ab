#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "base/random.h"
#include "tensor/dequantize.h"

namespace quire {
namespace {

constexpr std::size_t kTypeCount = static_cast<std::size_t>(DType::iq4_nl) + 1;

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(DType, GgufIdsLeadBackToTheirType) {
  for (std::size_t i = 0; i < kTypeCount; ++i) {
    const auto type = static_cast<DType>(i);
    const auto found = dtype_from_gguf(dtype_info(type).gguf_id);
    ASSERT_TRUE(found.ok());
    EXPECT_EQ(found.value(), type);
  }
}

TEST(DType, UnknownIdNamesItselfAndWhatThereIs) {
  const auto found = dtype_from_gguf(16);  // IQ2_XXS
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().code, Code::unsupported);
  EXPECT_NE(found.error().message.find("16"), std::string::npos);
  EXPECT_NE(found.error().message.find("Q4_1"), std::string::npos);
}

// tests/tensor/make_dequant_cases.py says where the cases come from. All types agree to the last
// bit.
TEST(DType, EveryTypeMeansWhatTheGgufPackageSays) {
  std::ifstream cases("tests/tensor/dequant_cases.txt");
  ASSERT_TRUE(cases) << "run from the source root";
  std::set<DType> seen;
  for (std::string line; std::getline(cases, line);) {
    std::string name, encoded_hex, floats_hex;
    std::istringstream(line) >> name >> encoded_hex >> floats_hex;
    for (std::size_t i = 0; i < kTypeCount; ++i) {
      const auto type = static_cast<DType>(i);
      if (dtype_info(type).name != name) continue;
      seen.insert(type);
      const auto encoded = bytes_of_hex(encoded_hex), wanted_bytes = bytes_of_hex(floats_hex);
      std::vector<float> wanted(wanted_bytes.size() / 4), got(wanted.size());
      std::memcpy(wanted.data(), wanted_bytes.data(), wanted_bytes.size());
      ASSERT_EQ(encoded.size(), row_bytes(type, wanted.size())) << name;
      dequantize_row(type, encoded.data(), wanted.size(), got.data());
      for (std::size_t e = 0; e < wanted.size(); ++e)
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got[e]), std::bit_cast<std::uint32_t>(wanted[e]))
            << name << " element " << e << ": " << got[e] << " against " << wanted[e];
    }
  }
  EXPECT_EQ(seen.size(), kTypeCount);
}

// What a GPU keeps of a row must mean what the row means.
TEST(DType, AffineTypesAreScaleTimesCodePlusOffset) {
  Random random(7);
  constexpr std::uint32_t kWidth = 512;
  int affine = 0;
  for (std::size_t t = 0; t < kTypeCount; ++t) {
    const auto type = static_cast<DType>(t);
    const DTypeInfo& info = dtype_info(type);
    if (affine_bits(type) == 0) continue;
    ++affine;
    for (int round = 0; round < 50; ++round) {
      std::vector<std::byte> row(row_bytes(type, kWidth));
      for (std::byte& b : row) b = static_cast<std::byte>(random.below(256));
      for (std::size_t at = 0; at < row.size(); at += info.block_bytes)  // f16 that are finite
        for (const std::size_t high : {at + 1, at + 3}) row[high] &= std::byte{0xbf};
      std::vector<float> values(kWidth);
      dequantize_row(type, row.data(), kWidth, values.data());
      for (std::uint32_t i = 0; i < kWidth; ++i) {
        const AffineGroup g = affine_group(type, row.data(), i / 32);
        ASSERT_LT(g.codes[i % 32], 1u << affine_bits(type)) << info.name;
        ASSERT_EQ(std::fma(g.scale, static_cast<float>(g.codes[i % 32]), g.offset), values[i])
            << info.name << " element " << i;
      }
    }
  }
  EXPECT_EQ(affine, 8);
}

}  // namespace
}  // namespace quire
