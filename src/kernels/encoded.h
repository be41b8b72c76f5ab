// kernels/encoded.h - attention over pages as they are encoded: scores and weighted sums straight
// from the codes, no decoded copy. Used by attention for every block that is sealed in a format
// other than its row type; the rows of a query's own block are not sealed and do not come here.
//
// One layer group (the parts depend on codec, side and shape only):
//
//   const EncodedPart keys = encoded_part(*format.keys, Side::keys, shape.rows(Side::keys));
//   const EncodedPart values = encoded_part(*format.values, Side::values, ...);
//
// One task: n (row, query head) pairs of one KV head.
//
//   e.prepare(keys, queries, dim, n, prepared);       // once; queries times the softmax scale
//   for each unit of 128 slots, left to right:
//     e.scores(keys, unit, prepared, n, weights);     // then mask, max, exp, merge_sums as ever
//     e.add_values(values, unit, weights, n, keep, take, out);
//   e.finish(values, n, out);                         // out leaves the codec's basis
//
// Rows that are not encoded lie in the plain basis, so they are merged, as a partial of their own,
// after finish(); it is linear, so before or after the division by the sum is the same.
//
// The arithmetic, the same for any n, unit by unit (ref/encoded.cc defines the bits, every
// instruction set equals it; sums of integers are exact in any order):
//
// Codes (all but floats). An element is x = (c - C) * step * scale + offset: c the code, or where
// levels are not even the integer level it stands for; C and step constants of the codec; scale and
// offset as f32. A vector of numbers z is made integer by its largest magnitude a: z = (a / M) * i,
// i = round(z * (M / a)). M is 127 for codes of up to 4 bits, 255 if those are values (their
// scales are not negative, a sign is dropped), and 127 * 128 for other codes, the keys of kivi-4 and the
// values of q4_0 ("two terms", i = 128 * high + low, each a byte). The error is then far below that
// of the codes. With u = a / M * step and m = -C * float(sum of i)
//   keys    z is a block of the query in the codec's basis: the dimensions of one scale, 128 at
//           most. s = 0; for each block: s = fma(fma(float(sum of i * c), u, m * u), scale[t], s),
//           and for codecs with offsets s = fma(sum of z, offset[t], s)
//   kivi    keys have scales per dimension: z = q * scale of the page, all dimensions one block,
//           s = fma(float(sum of i * c), u, fma(m, u, sum of q * offset))
//   values  z[t] = weight[t] * scale[t] for the unit's slots, for each group of dimensions of one
//           scale; a is the largest of all groups, and i = round((weight[t] * (M / a)) * scale[t]),
//           rounded once. Instead of o, out[d] = fma(float(sum of i * c), u * take,
//           fma(out[d], keep, fma(m, u, sum of weight[t] * offset[t]) * take))
// Floats (f32, f16, bf16, fp8) and what has no other way (decoded page by page): s = scale[t] * fma
// chain over the dimensions, o = fma chain over the slots of (weight[t] * scale[t]) * v, from 0.
// Sums of f32 vectors are by 16 lanes (element mod 16, fma in order) and the tree of vector.h.
//
// A page is finite if it was sealed here; with other bytes results are any floats, NaN included.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"
#include "format/codec.h"
#include "kernels/rope_view.h"

namespace quire {

struct Calibration;

inline constexpr std::uint32_t kEncodedUnit = 128;   // slots
inline constexpr std::uint32_t kEncodedVersion = 4;  // bumped when the bits of an answer may change
inline constexpr std::uint32_t kEncodedPagesMax = 8;  // of a unit: pages have 16 slots at least

// How the numbers of a page are found.
enum class EncodedScales : std::uint8_t {
  none,       // floats as they are
  slot_f16,   // [groups][P]
  slot_pair,  // steps [groups][P], then least [groups][P]; f16
  page_pair,  // steps [dim], then least [dim]; f16 (KIVI's keys)
  slot_fp8,   // [groups][P] e4m3, and [P] exponents
  slot_power  // [P] exponents (fp8)
};
enum class EncodedKind : std::uint8_t { codes, f32, f16, bf16, e4m3, e5m2, decoded };

// One side of a group's pages. Plain: copied by value, never changes.
struct EncodedPart {
  const Codec* codec;
  Side side;
  Rows rows;
  std::size_t page_bytes;
  std::size_t prepared_bytes;  // of one query row (keys); a multiple of 64

  // For the kernels.
  EncodedKind kind;
  EncodedScales scales;
  std::uint32_t bits, terms;
  float top;                                      // M
  std::uint32_t group;                            // dimensions of one scale
  std::uint32_t block;                            // keys: dimensions whose query has one scale
  float centre, step;                             // C, and between codes
  const std::uint8_t* levels;                     // 16 of them, or null: the code itself
  std::size_t scales_at, exponents_at, plane_at;  // plane_at: of the last bit of 3 or 5

  // Calibrated codecs: null, or of the model; the lane at hand; keys: how they are turned, and the
  // position of the first slot of the page that is sealed.
  const Calibration* calibration = nullptr;
  std::uint32_t lane = 0;
  RopeView rope = {};
  std::uint32_t position = 0;

  // Codecs of several layers: which of them reads, and, where a page is sealed, the bytes from one's
  // rows to the next one's. `rows` are those of one layer.
  std::uint32_t member = 0;
  std::size_t member_stride = 0;
};

EncodedPart encoded_part(const Codec& codec, Side side, Rows rows);  // check_rows() holds

// Codecs without a way of their own. A page as f32, keys [dim][P], values [P][dim], in the codec's
// basis; keys of a calibrated codec at their positions. And the page of rows of f16 that lie so.
void decode_page(const EncodedPart& part, const std::byte* page, std::uint32_t position,
                 float* out);
// A key from where it was before RoPE to its position, or back.
void turn_key(const RopeView& rope, std::uint32_t position, bool back, float* row);
void encode_page(const EncodedPart& part, const std::byte* rows, std::byte* page);

// Pages of one lane that hold slots [128 u, 128 u + page_count * P) of a sequence: this side's bytes,
// 64-byte aligned. The last unit of a row may have fewer than 128 / P: those before its own block.
struct EncodedUnit {
  const std::byte* pages[kEncodedPagesMax];
  std::uint32_t page_count;
  std::uint32_t position = 0;  // of the first slot; only calibrated keys need it
  // Fetched into L2 meanwhile: best this side's pages of the next unit. Half a unit ahead, as
  // values during scores, is late for codes of few bits.
  const std::byte* next[kEncodedPagesMax];
  std::uint32_t next_count;
  std::size_t next_bytes;  // of each
};

struct EncodedKernels {
  // queries: [n] rows, `stride` floats apart, times the softmax scale.
  void (*prepare)(const EncodedPart& keys, const float* queries, std::size_t stride,
                  std::uint32_t n, std::byte* prepared);
  // dots: [n][128]; only the unit's slots are written.
  void (*scores)(const EncodedPart& keys, const EncodedUnit& unit, const std::byte* prepared,
                 std::uint32_t n, float* dots);
  // weights: [n][128], 0 for slots a row does not see; out: [n][dim].
  // out[r][d] = out[r][d] * keep[r] + o[d] * take[r]; of floats fma(o, take, out * keep).
  void (*add_values)(const EncodedPart& values, const EncodedUnit& unit, const float* weights,
                     std::uint32_t n, const float* keep, const float* take, float* out);
  void (*finish)(const EncodedPart& values, std::uint32_t n, float* out);  // out: [n][dim]
  // The page of the codec from one of f16 (keys [dim][P], values [P][dim]): what codec.encode gives
  // for these rows.
  void (*seal)(const EncodedPart& part, const std::byte* rows, std::byte* page);
};

const EncodedKernels& encoded_kernels(Isa isa);

extern const EncodedKernels kEncodedScalar, kEncodedAvx2, kEncodedAvx512,
    kEncodedVnni;  // by encoded_kernels

}  // namespace quire
