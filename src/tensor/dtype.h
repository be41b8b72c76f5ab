// tensor/dtype.h - element types of weights: one entry per type, as GGUF numbers and sizes them.
//
// The last four are not GGUF's. Hugging Face folders keep codes, scales and zeros in tensors of their
// own; model/coded_tensor.h makes rows of blocks out of them:
//   F8_E4M3  32 elements: an f32 scale, 32 codes
//   U4       32 elements: an f16 scale, a byte z, 16 bytes of codes as in Q4_0; scale * (code - z)
//   U4_BF16  the same with a bf16 scale
//   NF4      64 elements: an f32 scale, 32 bytes of two codes each, the first one low
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
  iq4_xs,
  mxfp4,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  f8_e4m3,
  u4,
  u4_bf16,
  nf4,
};
inline constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::nf4) + 1;

inline constexpr std::uint32_t kNotInGguf = ~std::uint32_t{0};

struct DTypeInfo {
  std::string_view name;         // as printed: "Q4_1"
  std::uint32_t block_elements;  // elements that share scales; 1 for plain floats
  std::uint32_t block_bytes;
  std::uint32_t gguf_id;  // or kNotInGguf
};

const DTypeInfo& dtype_info(DType type);
Result<DType> dtype_from_gguf(std::uint32_t id);  // an error names the type

// Bytes of one row of `elements`, which must be a multiple of block_elements.
std::size_t row_bytes(DType type, std::size_t elements);

// The meaning of each type: `elements` floats from one encoded row.
void dequantize_row(DType type, const std::byte* row, std::size_t elements, float* out);

}  // namespace quire
