#include "model/coded_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/half.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using Method = Quantization::Method;

// tests/checkpoints compares whole models; here are the smallest matrices, written out.
class Tensors {
 public:
  template <class T>
  Tensors& add(const std::string& name, const std::string& type, std::vector<std::uint64_t> shape,
               const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    Kept& kept = kept_[name];
    kept = {{name, type, std::move(shape), {}}, std::move(bytes)};
    kept.raw.data = kept.bytes;
    return *this;
  }
  Result<std::optional<CodedTensor>> find(Quantization how, const std::string& name) const {
    return find_coded(
        [&](const std::string& n) -> Result<std::optional<FoundTensor>> {
          const auto found = kept_.find(n);
          if (found == kept_.end()) return std::optional<FoundTensor>();
          return std::optional(FoundTensor{found->second.raw});
        },
        how, name);
  }
  std::vector<float> values(Quantization how, const std::string& name, DType type) const {
    const auto found = find(how, name);
    if (!found.ok()) ADD_FAILURE() << found.error().message;
    if (!found.ok() || !found.value()) return {};
    const CodedTensor& coded = *found.value();
    EXPECT_EQ(coded.type, type);
    const std::size_t row = row_bytes(coded.type, coded.columns);
    std::vector<std::byte> bytes(coded.rows * row);
    coded.encode(0, coded.rows, bytes.data());
    std::vector<float> values(coded.rows * coded.columns);
    for (std::uint64_t r = 0; r < coded.rows; ++r)
      dequantize_row(coded.type, &bytes[r * row], coded.columns, &values[r * coded.columns]);
    return values;
  }
  std::string error(Quantization how, const std::string& name) const {
    const auto found = find(how, name);
    return found.ok() ? "" : found.error().message;
  }

 private:
  struct Kept {
    RawTensor raw;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Kept> kept_;
};

Quantization by(Method method) {
  Quantization how;
  how.method = method;
  return how;
}

constexpr std::uint32_t kCounting = 0x76543210;  // codes 0 to 7, the first lowest
constexpr std::uint16_t kHalf1 = 0x3c00, kHalf2 = 0x4000;

TEST(CodedTensor, PackedHasNeighboursInAWordAndZerosAlongOutputs) {
  Tensors t;
  t.add("x.weight_packed", "I32", {8, 4}, std::vector<std::uint32_t>(32, kCounting))
      .add("x.weight_scale", "F16", {8, 1},
           std::vector<std::uint16_t>{kHalf1, kHalf2, 0, 0, 0, 0, 0, kHalf1});
  std::vector<float> w = t.values(by(Method::packed), "x.weight", DType::u4);
  ASSERT_EQ(w.size(), 8 * 32u);
  for (int k = 0; k < 32; ++k) {
    EXPECT_EQ(w[k], k % 8 - 8);  // without zeros: 8
    EXPECT_EQ(w[32 + k], 2 * (k % 8 - 8));
  }
  t.add("x.weight_zero_point", "I32", {1, 1}, std::vector<std::uint32_t>{kCounting});
  w = t.values(by(Method::packed), "x.weight", DType::u4);
  for (int k = 0; k < 32; ++k) {
    EXPECT_EQ(w[k], k % 8);
    EXPECT_EQ(w[7 * 32 + k], k % 8 - 7);
  }
  t.add("x.weight_shape", "I64", {2}, std::vector<std::int64_t>{8, 31});
  EXPECT_THAT(t.error(by(Method::packed), "x.weight"), HasSubstr("'x.weight_shape' says [8, 31]"));
}

TEST(CodedTensor, GptqHasInputsInAWordAndZerosLessOne) {
  Tensors t;
  t.add("x.qweight", "I32", {4, 8}, std::vector<std::uint32_t>(32, kCounting))
      .add("x.qzeros", "I32", {1, 1}, std::vector<std::uint32_t>{0xfedcba98})
      .add("x.scales", "F16", {1, 8}, std::vector<std::uint16_t>(8, kHalf1));
  Quantization how = by(Method::gptq);
  EXPECT_EQ(t.values(how, "x.weight", DType::u4)[33], 1 - 9);
  how.zeros_less_one = true;
  EXPECT_EQ(t.values(how, "x.weight", DType::u4)[33], 1 - 10);
  EXPECT_EQ(t.values(how, "x.weight", DType::u4)[7 * 32], -16);
  t.add("x.g_idx", "I32", {32}, std::vector<std::uint32_t>(32, 1));
  EXPECT_THAT(t.error(how, "x.weight"), HasSubstr("'x.g_idx' puts input 0 into group 1 of 1"));
}

TEST(CodedTensor, AwqHasOutputsInAWordInItsOwnOrder) {
  Tensors t;
  t.add("x.qweight", "I32", {32, 1}, std::vector<std::uint32_t>(32, kCounting))
      .add("x.qzeros", "I32", {1, 1}, std::vector<std::uint32_t>{0x00000010})
      .add("x.scales", "F16", {1, 8}, std::vector<std::uint16_t>(8, kHalf1));
  const std::vector<float> w = t.values(by(Method::awq), "x.weight", DType::u4);
  const float wanted[] = {0, 4, 1 - 1, 5, 2, 6, 3, 7};  // the zero of output 2 is 1
  for (int o = 0; o < 8; ++o) EXPECT_EQ(w[o * 32 + 5], wanted[o]) << o;
}

TEST(CodedTensor, Fp8MultipliesWithTheScaleOfItsBlock) {
  Tensors t;
  t.add("x.weight", "F8_E4M3", {2, 160}, std::vector<std::uint8_t>(320, 0x38))
      .add("x.weight_scale_inv", "F32", {1, 2}, std::vector<float>{3, 5});
  Quantization how = by(Method::fp8);
  how.block_rows = how.block_columns = 128;
  const std::vector<float> w = t.values(how, "x.weight", DType::f8_e4m3);
  EXPECT_EQ(w[127], 3);
  EXPECT_EQ(w[160 + 128], 5);
  how.block_columns = 48;
  EXPECT_THAT(t.error(how, "x.weight"), HasSubstr("blocks of 48 inputs"));
  t.add("x.weight_scale_inv", "BF16", {}, std::vector<std::uint16_t>{f32_to_bf16(7)});
  EXPECT_EQ(t.values(by(Method::fp8), "x.weight", DType::f8_e4m3)[319], 7);
  EXPECT_FALSE(t.find(by(Method::fp8), "y.weight").value());
}

TEST(CodedTensor, Mxfp4PutsNeighboursSixteenApart) {
  std::vector<std::uint8_t> codes(16);
  for (std::uint8_t i = 0; i < 16; ++i)
    codes[i] = static_cast<std::uint8_t>(i % 8 | (i % 8 + 8) << 4);
  Tensors t;
  t.add("x_blocks", "U8", {1, 1, 1, 16}, codes)
      .add("x_scales", "U8", {1, 1, 1}, std::vector<std::uint8_t>{128});
  const std::vector<float> w = t.values(by(Method::mxfp4), "x_blocks", DType::mxfp4);
  const float levels[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int k = 0; k < 32; ++k) EXPECT_EQ(w[k], 2 * (k % 2 ? -1 : 1) * levels[k / 2 % 8]) << k;
}

TEST(CodedTensor, Nf4HasTheFirstOfTwoHigh) {
  constexpr const char* kJson = R"({"quant_type":"nf4","blocksize":64,"shape":[1,64]})";
  std::vector<float> map(16);
  for (int i = 0; i < 16; ++i) {
    std::vector<std::byte> row(36, static_cast<std::byte>(i));
    const float one = 1;
    std::memcpy(row.data(), &one, 4);
    float levels[64];
    dequantize_row(DType::nf4, row.data(), 64, levels);
    map[i] = levels[0];
  }
  Tensors t;
  t.add("x.weight", "U8", {32, 1}, std::vector<std::uint8_t>(32, 0x0f))
      .add("x.weight.absmax", "F32", {1}, std::vector<float>{2})
      .add("x.weight.quant_map", "F32", {16}, map)
      .add("x.weight.quant_state.bitsandbytes__nf4", "U8", {std::strlen(kJson)},
           std::vector<char>(kJson, kJson + std::strlen(kJson)));
  const std::vector<float> w = t.values(by(Method::nf4), "x.weight", DType::nf4);
  EXPECT_EQ(w[0], -2);
  EXPECT_EQ(w[1], 2);
  t.add("x.weight.absmax", "F32", {2}, std::vector<float>{2, 2});
  EXPECT_THAT(t.error(by(Method::nf4), "x.weight"), HasSubstr("2 scales"));
}

}  // namespace
}  // namespace quire
