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

#include "tensor/dtype.h"

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
// Blocks of 256 elements.
void dequantize_q2_k(const std::uint8_t* block, float* out);
void dequantize_q3_k(const std::uint8_t* block, float* out);
void dequantize_q4_k(const std::uint8_t* block, float* out);
void dequantize_q5_k(const std::uint8_t* block, float* out);
void dequantize_q6_k(const std::uint8_t* block, float* out);

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
