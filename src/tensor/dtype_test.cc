#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "tensor/dequantize.h"

namespace quire {
namespace {

std::vector<std::byte> bytes_of_hex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

TEST(DType, GgufIdsLeadBackToTheirType) {
  for (std::size_t i = 0; i < kDTypes; ++i) {
    const auto type = static_cast<DType>(i);
    const auto found = dtype_from_gguf(dtype_info(type).gguf_id);
    EXPECT_EQ(found.ok(), dtype_info(type).gguf_id != kNotInGguf);
    if (found.ok()) {
      EXPECT_EQ(found.value(), type);
    }
  }
}

TEST(DType, WhatIsNotReadIsNamed) {
  for (const auto& [id, name] :
       {std::pair{19u, "IQ1_S"}, {35u, "TQ2_0"}, {40u, "NVFP4"}, {77u, "77"}}) {
    const auto found = dtype_from_gguf(id);
    ASSERT_FALSE(found.ok());
    EXPECT_EQ(found.error().code, Code::unsupported);
    EXPECT_NE(found.error().message.find(std::string("type ") + name + " is"), std::string::npos);
    EXPECT_NE(found.error().message.find("Q4_1"), std::string::npos);
    EXPECT_EQ(found.error().message.find("NF4"), std::string::npos);
  }
}

// The types that GGUF does not have, against their definition in dtype.h.
TEST(DType, ScalesCodesAndZerosOfFoldersAreWhatTheHeaderSays) {
  const auto bytes_of = [](auto scale) {
    std::vector<std::byte> bytes(sizeof scale);
    std::memcpy(bytes.data(), &scale, sizeof scale);
    return bytes;
  };
  std::vector<std::byte> u4 = bytes_of(f32_to_f16(0.5f));
  u4.push_back(std::byte{7});
  for (int i = 0; i < 16; ++i) u4.push_back(static_cast<std::byte>(i | (15 - i) << 4));
  std::vector<float> got(64);
  dequantize_row(DType::u4, u4.data(), 32, got.data());
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(got[i], 0.5f * static_cast<float>(i - 7));
    EXPECT_EQ(got[16 + i], 0.5f * static_cast<float>(8 - i));
  }
  std::vector<std::byte> f8 = bytes_of(3.0f);
  for (const int code : {0x00, 0x01, 0x07, 0x08, 0x38, 0x7e, 0x81, 0xb8})
    f8.push_back(static_cast<std::byte>(code));
  f8.resize(row_bytes(DType::f8_e4m3, 32));
  dequantize_row(DType::f8_e4m3, f8.data(), 32, got.data());
  const float values[] = {0, 0x1p-9f, 0x7p-9f, 0x1p-6f, 1, 448, -0x1p-9f, -1};
  for (int i = 0; i < 8; ++i) EXPECT_EQ(got[i], 3 * values[i]) << i;
  std::vector<std::byte> nf4 = bytes_of(2.0f);
  for (int i = 0; i < 32; ++i) nf4.push_back(static_cast<std::byte>(i % 16 | (15 - i % 16) << 4));
  dequantize_row(DType::nf4, nf4.data(), 64, got.data());
  EXPECT_EQ(got[0], -2);
  EXPECT_EQ(got[1], 2);
  EXPECT_EQ(got[14], 0);
  EXPECT_EQ(got[15], 2 * 0.07958029955625534f);
  EXPECT_EQ(got[31], -2);
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
    for (std::size_t i = 0; i < kDTypes; ++i) {
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
  std::size_t of_gguf = 0;
  for (std::size_t i = 0; i < kDTypes; ++i)
    of_gguf += dtype_info(static_cast<DType>(i)).gguf_id != kNotInGguf;
  EXPECT_EQ(seen.size(), of_gguf);
}

// What a GPU keeps of a row must mean what the row means.
TEST(DType, AffineTypesAreScaleTimesCodePlusOffset) {
  Random random(7);
  constexpr std::uint32_t kWidth = 512;
  int affine = 0;
  for (std::size_t t = 0; t < kDTypes; ++t) {
    const auto type = static_cast<DType>(t);
    const DTypeInfo& info = dtype_info(type);
    if (affine_bits(type) == 0) continue;
    ++affine;
    for (int round = 0; round < 50; ++round) {
      std::vector<std::byte> row(row_bytes(type, kWidth));
      for (std::byte& b : row) b = static_cast<std::byte>(random.below(256));
      for (std::size_t at = 0; at < row.size(); at += info.block_bytes)  // f16 that are finite
        for (const std::size_t high : {at + 1, at + 3}) row[high] &= std::byte{0xbf};
      if (type == DType::mxfp4)
        for (std::size_t at = 0; at < row.size(); at += info.block_bytes)
          row[at] &= std::byte{0x7f};
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
  EXPECT_EQ(affine, 12);
}

}  // namespace
}  // namespace quire
