// tensor/dtype.h - element types of weights: one entry per type, as GGUF numbers and sizes them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace quire {

enum class DType : std::uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
};

struct DTypeInfo {
  std::string_view name;         // as printed: "Q4_1"
  std::uint32_t block_elements;  // elements that share scales; 1 for plain floats
  std::uint32_t block_bytes;
  std::uint32_t gguf_id;
};

const DTypeInfo& dtype_info(DType type);
Result<DType> dtype_from_gguf(std::uint32_t id);

// Bytes of one row of `elements`, which must be a multiple of block_elements.
std::size_t row_bytes(DType type, std::size_t elements);

// The meaning of each type: `elements` floats from one encoded row.
void dequantize_row(DType type, const std::byte* row, std::size_t elements, float* out);

}  // namespace quire
