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
    {{"F32", 1, 4, 0}, dequantize_f32},        {{"F16", 1, 2, 1}, dequantize_f16},
    {{"BF16", 1, 2, 30}, dequantize_bf16},     {{"Q4_0", 32, 18, 2}, dequantize_q4_0},
    {{"Q4_1", 32, 20, 3}, dequantize_q4_1},    {{"Q5_0", 32, 22, 6}, dequantize_q5_0},
    {{"Q5_1", 32, 24, 7}, dequantize_q5_1},    {{"Q8_0", 32, 34, 8}, dequantize_q8_0},
    {{"Q2_K", 256, 84, 10}, dequantize_q2_k},  {{"Q3_K", 256, 110, 11}, dequantize_q3_k},
    {{"Q4_K", 256, 144, 12}, dequantize_q4_k}, {{"Q5_K", 256, 176, 13}, dequantize_q5_k},
    {{"Q6_K", 256, 210, 14}, dequantize_q6_k}, {{"IQ4_NL", 32, 18, 20}, dequantize_iq4_nl},
};
static_assert(std::size(kTypes) == static_cast<std::size_t>(DType::iq4_nl) + 1);

const Row& row_of(DType type) { return kTypes[static_cast<std::size_t>(type)]; }

}  // namespace

const DTypeInfo& dtype_info(DType type) { return row_of(type).info; }

Result<DType> dtype_from_gguf(std::uint32_t id) {
  std::string known;
  for (std::size_t i = 0; i < std::size(kTypes); ++i) {
    if (kTypes[i].info.gguf_id == id) return static_cast<DType>(i);
    known += fmt::format(" {}", kTypes[i].info.name);
  }
  return Error{Code::unsupported,
               fmt::format("weight type {} is not supported; there are:{}", id, known)};
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
