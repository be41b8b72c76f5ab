// kernels/linear.h - matrix times rows, the same bits for one row or a thousand.
//
// A weight matrix is repacked once, at load: 16 outputs side by side, so that each element of a
// vector is one output and adds its inputs in order. One output is defined as follows, for every
// kernel, batch and thread count:
//
//   plain weights (f32, f16, bf16):   acc = 0; for k: acc = fma(w[k], x[k], acc)
//   (F8_E4M3, NF4):                   with w[k] = value of the code * scale, one f32 product
//   quantized weights, activations as int8 codes a with one scale s per 32 inputs, for each group g
//   of the weight's scale groups (32 inputs; 16 for Q2_K, Q3_K, Q6_K), in order, both sums from 0:
//     dot = sum over the group of (code - offset) * a            exact, in integers; U4's offset is
//                                                                the group's zero
//     acc = fma(float(dot), d[g] * s, acc)                       d[g] * s is one f32 product
//     low = fma(m[g], s * float(sum of a over the group), low)   only for types with a minimum
//   and the output is acc, or acc + low where there is a minimum (Q4_1, Q5_1, Q2_K, Q4_K, Q5_K).
//   Two sums, because the minima are then a small product of their own that shares no registers
//   with the dots. With int16 activations `dot` and the sum of a are those of 128 * coarse + fine,
//   the two int8 terms of an activation.
//
// How 32 activations x become codes, with amax the largest |x|; round is to nearest, ties to even:
//   int8    s = amax / 127,    a = round(x * (127 / amax))
//   int16   s = amax / 16319,  q = round(x * (16319 / amax)),
//           coarse = floor((q + 64) / 128),  fine = q - 128 * coarse
//   amax below 2^-100 gives s = 0 and codes 0. An Inf or NaN among the 32 gives s = NaN and codes 0,
//   so that every output of the row is NaN. Instruction sets may differ in which NaN that is, and in
//   nothing else.
//
//   PackedMatrix w = pack_matrix(type, outputs, inputs, row, memory);
//   const LinearKernels& k = linear_kernels(best_isa());
//   k.quantize(x, 0, 0, inputs, rows);  // row 0, all inputs; or in parts of a multiple of 32
//   k.multiply(w, rows, 0, 1, 0, w.padded_outputs(), out, outputs, nullptr);  // one thread's columns
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/cpu.h"
#include "kernels/fetch.h"
#include "tensor/dtype.h"

namespace quire {

enum class Activations : std::uint8_t { int8, int16 };

// Part of the numerics id: changes whenever the definition above does.
inline constexpr std::uint32_t kLinearVersion = 2;

// Outputs per panel; column ranges are multiples of it.
inline constexpr std::uint32_t kPanelOutputs = 16;

// Inputs of quantized weights are a multiple of it.
inline constexpr std::uint32_t kActivationBlock = 32;

// A repacked matrix. Points into memory that the loader owns.
struct PackedMatrix {
  DType type = DType::f32;    // of the source
  std::uint32_t outputs = 0;  // as the model knows them
  std::uint32_t inputs = 0;
  const std::byte* data = nullptr;
  std::uint32_t padded_outputs() const {
    return (outputs + kPanelOutputs - 1) / kPanelOutputs * kPanelOutputs;
  }
};

std::size_t packed_bytes(DType type, std::uint32_t outputs, std::uint32_t inputs);

// Fills `into` (64-byte aligned, packed_bytes long). row(o) is the encoded source row of output o,
// so that matrices can be concatenated, interleaved or permuted on the way in.
PackedMatrix pack_matrix(DType type, std::uint32_t outputs, std::uint32_t inputs,
                         const std::function<const std::byte*(std::uint32_t)>& row,
                         std::span<std::byte> into);

// Activation rows as the kernels want them. The buffer is the caller's; sized by activation_bytes.
struct ActivationRows {
  Activations mode = Activations::int8;
  std::uint32_t rows = 0, inputs = 0;
  std::byte* data = nullptr;  // codes, scales and sums (layout private to kernels/)
  float* plain = nullptr;     // the f32 rows themselves, [rows][inputs], for plain weights
  bool half_sums = true;      // false where no weights have uses_half_sums
};

std::size_t activation_bytes(Activations mode, std::uint32_t rows, std::uint32_t inputs);

struct LinearKernels {
  // Encodes inputs [first, first + count) of row `row` (both multiples of 32) from x[0..count).
  void (*quantize)(const float* x, std::uint32_t row, std::uint32_t first, std::uint32_t count,
                   const ActivationRows& into);
  // out[r * out_stride + o] for r in [row_begin, row_end), o in [column_begin, column_end); column
  // bounds are multiples of kPanelOutputs, except that the last may be padded_outputs (padding
  // columns are not written). If `fetch` is not null, its pages are fetched on the way.
  void (*multiply)(const PackedMatrix& w, const ActivationRows& x, std::uint32_t row_begin,
                   std::uint32_t row_end, std::uint32_t column_begin, std::uint32_t column_end,
                   float* out, std::size_t out_stride, Fetch* fetch);
};

const LinearKernels& linear_kernels(Isa isa);

// True where activations of this weight type are quantized; plain weights read
// ActivationRows::plain.
bool uses_quantized_activations(DType type);

// True where 16 inputs share a scale, so that activations are summed by 16 too.
bool uses_half_sums(DType type);

}  // namespace quire
