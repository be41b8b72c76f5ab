// kernels/linear_layout.h - how packed weights and activation rows lie in memory; private to the
// linear kernels.
//
// A panel is 16 outputs, and panels follow each other, so that a product reads memory front to
// back; any other order cost a third of the read rate or more. Plain weights lie as [input][16
// outputs]. Two plain types are coded, and lie as one record per 128 inputs (F8_E4M3) or 64 (NF4):
//   scales  f32 of 16 outputs. An F8_E4M3's is NaN if it is 2^120 or more, or a code is NaN
//   codes   [input][16 outputs], of NF4 [input / 2][16 outputs], the first input low. The last record
//           of a row may have fewer inputs
// Quantized weights lie as one record per 32 inputs, 16 outputs wide:
//   codes   step j of eight is a vector of 64 bytes: inputs 4j..4j+3 of output 0, of output 1, ...
//           8 bits: the eight vectors. Fewer bits are split into planes, in this order:
//           4 bits: four vectors, low nibbles step 2i, high nibbles step 2i + 1      (4, 5, 6 bits)
//           2 bits: two vectors, from the low end steps 4i .. 4i + 3                 (2, 3, 6 bits)
//           1 bit:  one vector, from the low end steps 0..7, the code's highest bit  (3, 5 bits)
//   scales  per group: f16, bf16 (MXFP4, U4_BF16), or an int8 to be multiplied with the head's number
//   minima  as scales, in types that have minima
//   zeros   per output, a byte to be taken from its codes (U4)
// Types of 256 elements put a head before every eight records: f16 d, and f16 -dmin where there are
// minima. Types with a grid (IQ2, IQ3) are decoded to codes of 8 bits, and their d is f32.
// Activation rows lie in groups of eight; a cell is 32 inputs of eight rows, so that a tile of rows
// finds everything at constant offsets from one pointer.
//
// The instruction-set files include this header, so everything here is internal to its translation
// unit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/linear.h"

namespace quire {

struct LinearLayout {
  std::uint8_t code_bits;               // 0 for plain weights
  std::uint8_t group;                   // inputs that share a scale: 16 or 32
  std::uint8_t offset;                  // value = d * (code - offset), or d * code + m
  bool minimum;                         // has m
  std::uint8_t head_bytes;              // of d in the head; 0: one level of scales
  const std::uint8_t* table = nullptr;  // the 4-bit code is an index into it
  bool brain = false;                   // scales are bf16
  bool zeros = false;                   // the offset is a byte for each output and group

  constexpr bool heads() const { return head_bytes != 0; }
};

// IQ4_NL's sixteen values, with 128 added.
static constexpr std::uint8_t kIq4Codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                               129, 141, 153, 166, 181, 197, 217, 241};
// Twice E2M1's, likewise.
static constexpr std::uint8_t kMxfp4Codes[16] = {128, 129, 130, 131, 132, 134, 136, 140,
                                                 128, 127, 126, 125, 124, 122, 120, 116};

// clang-format off
static inline constexpr LinearLayout linear_layout(DType type) {
  switch (type) {
    case DType::q4_0:    return {4, 32,   8, false, 0};
    case DType::q4_1:    return {4, 32,   0, true,  0};
    case DType::q5_0:    return {5, 32,  16, false, 0};
    case DType::q5_1:    return {5, 32,   0, true,  0};
    case DType::q8_0:    return {8, 32, 128, false, 0};
    case DType::iq4_nl:  return {4, 32, 128, false, 0, kIq4Codes};
    case DType::mxfp4:   return {4, 32, 128, false, 0, kMxfp4Codes, true};
    case DType::u4:      return {4, 32,   0, false, 0, nullptr, false, true};
    case DType::u4_bf16: return {4, 32,   0, false, 0, nullptr, true, true};
    case DType::q2_k:    return {2, 16,   0, true,  2};
    case DType::q3_k:    return {3, 16,   4, false, 2};
    case DType::q4_k:    return {4, 32,   0, true,  2};
    case DType::q5_k:    return {5, 32,   0, true,  2};
    case DType::q6_k:    return {6, 16,  32, false, 2};
    case DType::iq4_xs:  return {4, 32, 128, false, 2, kIq4Codes};
    case DType::iq2_xs:
    case DType::iq2_s:   return {8, 16, 128, false, 4};
    case DType::iq2_xxs:
    case DType::iq3_xxs:
    case DType::iq3_s:   return {8, 32, 128, false, 4};
    default:             return {0,  0,   0, false, 0};
  }
}
// clang-format on

static inline constexpr std::size_t lines_of_64(std::size_t n) { return (n + 63) / 64 * 64; }

// Where the planes of a record start.
static inline constexpr std::size_t pair_plane(int code_bits) { return code_bits == 6 ? 256 : 0; }
static inline constexpr std::size_t bit_plane(int code_bits) { return code_bits == 5 ? 256 : 128; }

// Where the parts of a record start, its size and that of a head, in bytes.
struct RecordParts {
  std::size_t scales, minima, zeros, bytes, head;
};

static constexpr std::uint32_t kHeadRecords = 8;

static inline constexpr RecordParts record_parts(DType type) {
  const LinearLayout l = linear_layout(type);
  if (l.code_bits == 0) return {0, 0, 0, 0, 0};
  const std::size_t numbers = l.minimum ? 2 : 1, codes = std::size_t{64} * l.code_bits;
  const std::size_t scales = std::size_t{32} / l.group * kPanelOutputs * (l.heads() ? 1 : 2);
  const std::size_t end = codes + scales * numbers;
  return {codes, codes + scales, end, end + (l.zeros ? kPanelOutputs : 0),
          numbers * kPanelOutputs * l.head_bytes};
}

// Inputs that share a scale in plain types that are coded; 0: plain floats.
static inline constexpr std::uint32_t coded_run(DType type) {
  return type == DType::f8_e4m3 ? 128 : type == DType::nf4 ? 64 : 0;
}
static constexpr std::size_t kRunScales = kPanelOutputs * sizeof(float);
// Of a whole record; `inputs` of a shorter one.
static inline constexpr std::size_t run_bytes(DType type, std::size_t inputs) {
  return kRunScales + inputs * kPanelOutputs / (type == DType::nf4 ? 2 : 1);
}

// From a panel's start to its record b. Where there are heads, b's head is at head_at(b).
static inline constexpr std::size_t head_at(const RecordParts& parts, std::size_t b) {
  return b / kHeadRecords * (parts.head + kHeadRecords * parts.bytes);
}
static inline constexpr std::size_t record_at(const RecordParts& parts, std::size_t b) {
  return b * parts.bytes + (b / kHeadRecords + 1) * parts.head;
}

// From panel to panel.
static inline constexpr std::size_t panel_stride(DType type, std::uint32_t inputs) {
  if (const std::size_t run = coded_run(type); run != 0) {
    const std::size_t rest = inputs % run;
    return lines_of_64(inputs / run * run_bytes(type, run) + (rest ? run_bytes(type, rest) : 0));
  }
  if (linear_layout(type).code_bits == 0)
    return lines_of_64(std::size_t{inputs} * kPanelOutputs * (type == DType::f32 ? 4 : 2));
  const RecordParts parts = record_parts(type);
  const std::size_t records = inputs / kActivationBlock;
  return lines_of_64(records * parts.bytes + records / kHeadRecords * parts.head);
}

// Byte offsets within a cell. Each array is [8 rows], of 32 bytes (codes) or of one 4-byte value.
static constexpr std::uint32_t kRowGroup = 8;
static constexpr std::size_t kCellCodes = 0;
static constexpr std::size_t kCellScales = 256;      // s
static constexpr std::size_t kCellScaledSums = 288;  // s * float(sum of a)
static constexpr std::size_t kCellSums = 320;        // sum of a, int32
static constexpr std::size_t kCellHalfSums = 352;    // the same for inputs 0..15, then 16..31
static constexpr std::size_t kCellScaledHalfSums = 416;
static constexpr std::size_t kCellBytes = 576;  // an odd number of lines, to use all cache sets
static constexpr std::size_t kCellFine = kCellBytes;  // int16 mode only: the second term's codes

static inline constexpr std::size_t cell_bytes(Activations mode) {
  return mode == Activations::int16 ? kCellFine + 256 : kCellBytes;
}

// The cell of inputs [32 * block, 32 * block + 32) of the group that holds `row`.
static inline std::byte* activation_cell(const ActivationRows& x, std::uint32_t row,
                                         std::size_t block) {
  return x.data +
         (row / kRowGroup * std::size_t{x.inputs / kActivationBlock} + block) * cell_bytes(x.mode);
}

// Blocks whose largest magnitude is below this are zero: 127 / amax stays finite above it.
static constexpr float kActivationMin = 0x1p-100f;
static constexpr float kInt8Max = 127.0f;
static constexpr float kInt16Max = 127.0f * 128.0f + 63.0f;

extern const LinearKernels kLinearScalar, kLinearAvx2, kLinearAvx512, kLinearVnni;

}  // namespace quire
