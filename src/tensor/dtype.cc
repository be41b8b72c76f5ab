#include "tensor/dtype.h"

#include <fmt/format.h>

#include "tensor/dequantize.h"

namespace quire {
namespace {

struct Row {
  DTypeInfo info;
  DequantizeBlock dequantize;
};

constexpr Row kTypes[] = {
    // by DType
    {{"F32", 1, 4, 0}, dequantize_f32},
    {{"F16", 1, 2, 1}, dequantize_f16},
    {{"BF16", 1, 2, 30}, dequantize_bf16},
    {{"Q4_0", 32, 18, 2}, dequantize_q4_0},
    {{"Q4_1", 32, 20, 3}, dequantize_q4_1},
    {{"Q5_0", 32, 22, 6}, dequantize_q5_0},
    {{"Q5_1", 32, 24, 7}, dequantize_q5_1},
    {{"Q8_0", 32, 34, 8}, dequantize_q8_0},
    {{"Q2_K", 256, 84, 10}, dequantize_q2_k},
    {{"Q3_K", 256, 110, 11}, dequantize_q3_k},
    {{"Q4_K", 256, 144, 12}, dequantize_q4_k},
    {{"Q5_K", 256, 176, 13}, dequantize_q5_k},
    {{"Q6_K", 256, 210, 14}, dequantize_q6_k},
    {{"IQ4_NL", 32, 18, 20}, dequantize_iq4_nl},
    {{"IQ4_XS", 256, 136, 23}, dequantize_iq4_xs},
    {{"MXFP4", 32, 17, 39}, dequantize_mxfp4},
    {{"IQ2_XXS", 256, 66, 16}, dequantize_grid<DType::iq2_xxs>},
    {{"IQ2_XS", 256, 74, 17}, dequantize_grid<DType::iq2_xs>},
    {{"IQ2_S", 256, 82, 22}, dequantize_grid<DType::iq2_s>},
    {{"IQ3_XXS", 256, 98, 18}, dequantize_grid<DType::iq3_xxs>},
    {{"IQ3_S", 256, 110, 21}, dequantize_grid<DType::iq3_s>},
    {{"F8_E4M3", 32, 36, kNotInGguf}, dequantize_f8_e4m3},
    {{"U4", 32, 19, kNotInGguf}, dequantize_u4},
    {{"U4_BF16", 32, 19, kNotInGguf}, dequantize_u4_bf16},
    {{"NF4", 64, 36, kNotInGguf}, dequantize_nf4},
};
static_assert(std::size(kTypes) == kDTypes);

// Types that GGUF files may have and Quire does not read.
struct UnreadType {
  std::uint32_t id;
  std::string_view name;
};
constexpr UnreadType kUnread[] = {
    {9, "Q8_1"},   {15, "Q8_K"},     {19, "IQ1_S"},    {24, "I8"},
    {25, "I16"},   {26, "I32"},      {27, "I64"},      {28, "F64"},
    {29, "IQ1_M"}, {31, "Q4_0_4_4"}, {32, "Q4_0_4_8"}, {33, "Q4_0_8_8"},
    {34, "TQ1_0"}, {35, "TQ2_0"},    {40, "NVFP4"},    {41, "Q1_0"}};

const Row& row_of(DType type) { return kTypes[static_cast<std::size_t>(type)]; }

}  // namespace

const DTypeInfo& dtype_info(DType type) { return row_of(type).info; }

Result<DType> dtype_from_gguf(std::uint32_t id) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    if (kTypes[i].info.gguf_id == kNotInGguf) continue;
    if (kTypes[i].info.gguf_id == id) return static_cast<DType>(i);
    known += fmt::format(" {}", kTypes[i].info.name);
  }
  std::string name = std::to_string(id);
  for (const UnreadType& unread : kUnread)
    if (unread.id == id) name = unread.name;
  return Error{Code::unsupported,
               fmt::format("weight type {} is not supported; there are:{}", name, known)};
}

std::size_t row_bytes(DType type, std::size_t elements) {
  const DTypeInfo& info = dtype_info(type);
  DCHECK(elements % info.block_elements == 0);
  return elements / info.block_elements * info.block_bytes;
}

void dequantize_row(DType type, const std::byte* row, std::size_t elements, float* out) {
  const Row& t = row_of(type);
  CHECK(elements % t.info.block_elements == 0);
  const auto* block = reinterpret_cast<const std::uint8_t*>(row);
  for (std::size_t i = 0; i < elements; i += t.info.block_elements, block += t.info.block_bytes)
    t.dequantize(block, out + i);
}

}  // namespace quire
