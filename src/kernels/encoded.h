// kernels/encoded.h - attention over encoded pages: scores and weighted sums straight from the
// codes, without a decoded copy. Attention uses it for every block that is sealed in a format other
// than its row type. The rows of a query's own block are not sealed and are read by attend.h.
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
//     e.scores(keys, unit, prepared, n, weights);     // then mask, max, exp, merge_sums (attend.h)
//     e.add_values(values, unit, weights, n, keep, take, out);
//   e.finish(values, n, out);                         // out leaves the codec's basis
//
// Rows that are not encoded lie in the plain basis. They are a partial of their own, which is
// merged after finish(). finish() is linear, so it may come before or after the division by the
// sum.
//
// The arithmetic does not depend on n. ref/encoded.cc defines the bits, and every instruction set
// gives them; sums of integers are exact in any order. Unit by unit:
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
// Sums over f32 vectors have 16 partial sums (element mod 16, fma in order) and the tree of
// vector.h.
//
// Pages that Quire sealed hold finite numbers. With any other bytes results may be any floats or
// NaN.
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

  // Calibrated codecs: the model's calibration or null, and the current lane. For keys: how they
  // are rotated, and the position of the first slot of the page that is being sealed.
  const Calibration* calibration = nullptr;
  std::uint32_t lane = 0;
  RopeView rope = {};
  std::uint32_t position = 0;

  // Codecs of several layers: which layer reads, and, when a page is sealed, the bytes from one
  // layer's rows to the next layer's. `rows` are those of one layer.
  std::uint32_t member = 0;
  std::size_t member_stride = 0;
};

EncodedPart encoded_part(const Codec& codec, Side side, Rows rows);  // check_rows() holds

// Whether latent rows can be stored so: codes of 4 or 8 bits that have one scale for a slot, or a group
// of its dimensions, on both sides. They are read as keys and as values.
bool can_be_latent(const Codec& codec);

// For codecs without kernels of their own. decode: a page as f32, keys [dim][P], values [P][dim],
// in the codec's basis; keys of a calibrated codec are rotated to their positions. encode: a page
// from rows of f16 in the same order.
void decode_page(const EncodedPart& part, const std::byte* page, std::uint32_t position,
                 float* out);
// Rotates a key (RoPE) to its position, or back.
void turn_key(const RopeView& rope, std::uint32_t position, bool back, float* row);
void encode_page(const EncodedPart& part, const std::byte* rows, std::byte* page);

// Pages of one lane that hold slots [128 u, 128 u + page_count * P) of a sequence: this side's bytes,
// 64-byte aligned. The last unit of a row may have fewer than 128 / P: those before its own block.
struct EncodedUnit {
  const std::byte* pages[kEncodedPagesMax];
  std::uint32_t page_count;
  std::uint32_t position = 0;  // of the first slot; only calibrated keys need it
  // Pages to fetch into L2 meanwhile: best this side's pages of the next unit. Fetching half a unit
  // ahead (values during scores) is too late for codes of few bits.
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
  // The latent part of a page (EncodedPart of values) as a page of keys: the same codes and scales in the
  // other side's order. Parts that can_be_latent only.
  void (*turn)(const EncodedPart& values, const std::byte* page, std::byte* keys);
  // Encodes a page of f16 (keys [dim][P], values [P][dim]) into the bytes that codec.encode gives
  // for these rows.
  void (*seal)(const EncodedPart& part, const std::byte* rows, std::byte* page);
};

const EncodedKernels& encoded_kernels(Isa isa);

extern const EncodedKernels kEncodedScalar, kEncodedAvx2, kEncodedAvx512,
    kEncodedVnni;  // by encoded_kernels

}  // namespace quire
