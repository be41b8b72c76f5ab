// tensor/dequantize.h - one encoded block of each weight type as floats. Used by the table in
// tensor/dtype.cc.
//
// These few lines define what the bytes of a quantized file mean: products and sums are f32, in the
// order written, with no fused multiply-add. Fast kernels are tested against them.
//
//   float row[32];
//   dequantize_q4_1(block, row);
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/code_levels.h"
#include "tensor/dtype.h"
#include "tensor/grids.h"

namespace quire {

using DequantizeBlock = void (*)(const std::uint8_t* block, float* out);

// One element.
void dequantize_f32(const std::uint8_t* block, float* out);
void dequantize_f16(const std::uint8_t* block, float* out);
void dequantize_bf16(const std::uint8_t* block, float* out);
// Blocks of 32 elements.
void dequantize_q4_0(const std::uint8_t* block, float* out);
void dequantize_q4_1(const std::uint8_t* block, float* out);
void dequantize_q5_0(const std::uint8_t* block, float* out);
void dequantize_q5_1(const std::uint8_t* block, float* out);
void dequantize_q8_0(const std::uint8_t* block, float* out);
void dequantize_iq4_nl(const std::uint8_t* block, float* out);
void dequantize_mxfp4(const std::uint8_t* block, float* out);
void dequantize_f8_e4m3(const std::uint8_t* block, float* out);
void dequantize_u4(const std::uint8_t* block, float* out);
void dequantize_u4_bf16(const std::uint8_t* block, float* out);
// Blocks of 64 elements.
void dequantize_nf4(const std::uint8_t* block, float* out);
// Blocks of 256 elements.
void dequantize_q2_k(const std::uint8_t* block, float* out);
void dequantize_q3_k(const std::uint8_t* block, float* out);
void dequantize_q4_k(const std::uint8_t* block, float* out);
void dequantize_q5_k(const std::uint8_t* block, float* out);
void dequantize_q6_k(const std::uint8_t* block, float* out);
void dequantize_iq4_xs(const std::uint8_t* block, float* out);
template <DType kType>
void dequantize_grid(const std::uint8_t* block, float* out) {
  const GridBlock b = grid_block(kType, block);
  for (int i = 0; i < 256; ++i)
    out[i] = b.scale * static_cast<float>(b.factors[i / 16]) * static_cast<float>(b.codes[i]);
}

// MXFP4's scale, half a power of two, as a bf16 has it.
inline constexpr std::uint16_t mxfp4_scale(std::uint8_t e) {
  return static_cast<std::uint16_t>(e < 2 ? 0x20 << e : (e - 1) << 7);
}

// Types whose elements are scale * code + offset, with one scale and offset per 32 neighbours. As a
// fused multiply-add this equals dequantize_row, except for the sign of a zero. `affine_bits` is
// the number of bits of a code; 0 for types of another kind.
struct AffineGroup {
  float scale, offset;
  std::uint8_t codes[32];
};
std::uint32_t affine_bits(DType type);
AffineGroup affine_group(DType type, const std::byte* row, std::uint64_t group);

}  // namespace quire
