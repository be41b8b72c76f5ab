// kernels/cpu/linear_tile.h - the linear kernels over a vector of S::kElements outputs, written
// once for all instruction sets.
//
// linear_avx2.cc, linear_avx512.cc and linear_vnni.cc each define S, a handful of instructions, and
// include this file. A tile is R rows times one panel: a weight is loaded and unpacked once and
// used for R rows. Each element is one output and adds its groups in order, so R changes no bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/linear_layout.h"
#include "tensor/code_levels.h"

namespace quire {
namespace {

#define UNROLL _Pragma("GCC unroll 16")

template <class T>
inline T load_as(const std::byte* at) {
  T v;
  std::memcpy(&v, at, sizeof v);
  return v;
}

inline constexpr int shift_of(int offset) {
  int n = 0;
  while ((1 << n) < offset) ++n;
  return n;
}

struct TileArgs {
  const std::byte* panel;  // the first
  const std::byte* rows;   // the first cell; plain weights: the first row's inputs
  std::uint32_t slot;      // the first row's place in the cell
  std::size_t row_bytes;   // plain weights: from row to row
  std::uint32_t inputs;
  float* out;  // first row, first column
  std::size_t out_stride;
  std::uint32_t width;  // columns to write
  bool cold;            // the panel's first use: it comes from memory
  FetchPart fetch;      // what else to fetch meanwhile
};

template <class S, int R>
inline void store_tile(const TileArgs& t, typename S::F (&acc)[R][S::kVectors]) {
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < S::kVectors; ++c) {
      const std::uint32_t first = static_cast<std::uint32_t>(c) * S::kElements;
      if (first < t.width) S::store(t.out + r * t.out_stride + first, acc[r][c], t.width - first);
    }
  }
}

// f(std::integral_constant<int, i>) for i = 0 .. n - 1, because shifts want constants.
template <class F, int... kIndex>
inline void unrolled(F&& f, std::integer_sequence<int, kIndex...>) {
  (f(std::integral_constant<int, kIndex>()), ...);
}
template <int n, class F>
inline void unrolled(F&& f) {
  unrolled(f, std::make_integer_sequence<int, n>());
}

// Moves bit kFrom of every byte to bit kTo; what else moves is masked away by the caller.
template <class S, int kFrom, int kTo>
inline typename S::I move_bits(typename S::I v) {
  if constexpr (kFrom < kTo)
    return S::template shift_left_16<kTo - kFrom>(v);
  else if constexpr (kFrom > kTo)
    return S::template shift_right_16<kFrom - kTo>(v);
  else
    return v;
}

// The codes of one step. `record` points at the vector's first output.
template <class S, DType kType, int kStep>
inline typename S::I unpack(const std::byte* record) {
  using I = typename S::I;
  constexpr LinearLayout kLayout = linear_layout(kType);
  constexpr int kBits = kLayout.code_bits, kAfterNibble = kBits >= 4 ? 4 : 0;
  if constexpr (kBits == 8) return S::load_int(record + kStep * 64);
  I code;
  if constexpr (kBits >= 4) {
    const I both = S::load_int(record + kStep / 2 * 64);
    code = S::mask(move_bits<S, kStep % 2 * 4, 0>(both), 15);
  }
  if constexpr (kBits == 6 || kBits < 4) {
    const I four = S::load_int(record + pair_plane(kBits) + kStep / 4 * 64);
    const I pair = move_bits<S, kStep % 4 * 2, kAfterNibble>(four);
    code = kBits == 6 ? S::merge(code, pair, 3 << kAfterNibble) : S::mask(pair, 3);
  }
  if constexpr (kBits == 5 || kBits == 3) {
    const I eight = S::load_int(record + bit_plane(kBits));
    code = S::merge(code, move_bits<S, kStep, kBits - 1>(eight), 1 << (kBits - 1));
  }
  if constexpr (kLayout.table != nullptr) code = S::look_up(kLayout.table, code);
  return code;
}

// The scales (kWhich 0) or minima (1) of group `group` of a record, for one vector of outputs.
template <class S, DType kType, int kWhich>
inline typename S::F load_scale(const std::byte* record, int group, int vector,
                                const typename S::F* heads) {
  constexpr LinearLayout kLayout = linear_layout(kType);
  constexpr RecordParts kParts = record_parts(kType);
  const std::byte* from = record + (kWhich == 0 ? kParts.scales : kParts.minima);
  const int at = group * 16 + vector * S::kElements;
  if constexpr (kLayout.heads())
    return S::mul(heads[vector], S::to_float(S::load_bytes(from + at)));
  else if constexpr (kLayout.brain)
    return S::load_brain(from + at * 2);
  else
    return S::load_half(from + at * 2);
}

template <class S, DType kType, int kWhich>
inline void load_heads(const std::byte* head, typename S::F (&into)[S::kVectors]) {
  constexpr int kBytes = linear_layout(kType).head_bytes;
  UNROLL for (int c = 0; c < S::kVectors; ++c) {
    const std::byte* from = head + (kWhich * 16 + c * S::kElements) * kBytes;
    into[c] = kBytes == 4 ? S::load_float(from) : S::load_half(from);
  }
}

// Sums of products of one group of inputs, for R rows. VNNI adds four products to 32 bits at once.
// Without it a step gives sums of two in 16 bits, of which kFold steps fit before they are widened:
// a code of n bits times 127, twice, leaves room for 8 steps (4 bits), 4 (5 bits) or 2 (6 bits).
template <class S, DType kType, int R>
struct Dots {
  static constexpr int V = S::kVectors;
  static constexpr int kBits = linear_layout(kType).code_bits;
  static constexpr bool kByteCodes = kBits == 8 || linear_layout(kType).table != nullptr;
  static constexpr bool kNarrow = !S::kHasVnni && !kByteCodes;
  static constexpr int kFold = kBits <= 4 ? 8 : kBits == 5 ? 4 : 2;
  // Without VNNI byte codes are taken as signed numbers, which are the codes less their offset.
  static constexpr bool kOffsetIsGone = !S::kHasVnni && kByteCodes;

  typename S::I sums[R][V], narrow[R][V];

  Dots() {
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int c = 0; c < V; ++c) sums[r][c] = narrow[r][c] = S::zero_int();
    }
  }

  // One step of four inputs: vectors w[c] of codes against R broadcast activations.
  template <int kStep, int kSteps>
  void add(const typename S::I (&w)[V], const std::byte* activations) {
    UNROLL for (int r = 0; r < R; ++r) {
      const auto a = S::broadcast(activations + r * 32);
      UNROLL for (int c = 0; c < V; ++c) {
        if constexpr (kNarrow) {
          narrow[r][c] = S::add_16(narrow[r][c], S::multiply_pairs(w[c], a));
          if constexpr (kStep % kFold == kFold - 1 || kStep == kSteps - 1) {
            sums[r][c] = S::add_int(sums[r][c], S::widen_pairs(narrow[r][c]));
            narrow[r][c] = S::zero_int();
          }
        } else if constexpr (kByteCodes) {
          sums[r][c] = S::dot_bytes(sums[r][c], w[c], a);
        } else {
          sums[r][c] = S::dot(sums[r][c], w[c], a);
        }
      }
    }
  }
};

// The minimum terms of one record.
template <class S, DType kType, int R>
inline void add_minima(const std::byte* record, const std::byte* values, const typename S::F* heads,
                       typename S::F (&low)[R][S::kVectors]) {
  constexpr LinearLayout kLayout = linear_layout(kType);
  constexpr std::size_t kSums = kLayout.group == 32 ? kCellScaledSums : kCellScaledHalfSums;
  UNROLL for (int g = 0; g < 32 / kLayout.group; ++g) {
    typename S::F m[S::kVectors];
    UNROLL for (int c = 0; c < S::kVectors; ++c) m[c] =
        load_scale<S, kType, 1>(record, g, c, heads);
    UNROLL for (int r = 0; r < R; ++r) {
      const auto sum = S::broadcast_float(values + kSums + g * 32 + r * 4);
      UNROLL for (int c = 0; c < S::kVectors; ++c) low[r][c] = S::fma(m[c], sum, low[r][c]);
    }
  }
}

template <class S, DType kType, bool kTwoTerms, int R>
__attribute__((noinline)) void quantized_tile(const TileArgs& t) {
  using I = typename S::I;
  using F = typename S::F;
  constexpr int V = S::kVectors;
  constexpr LinearLayout kLayout = linear_layout(kType);
  constexpr RecordParts kParts = record_parts(kType);
  constexpr int kSteps = kLayout.group / 4, kGroups = 32 / kLayout.group;
  constexpr std::size_t kCell = cell_bytes(kTwoTerms ? Activations::int16 : Activations::int8);
  constexpr std::size_t kSums = kGroups == 1 ? kCellSums : kCellHalfSums;
  using Sums = Dots<S, kType, R>;
  constexpr bool kExcess = kLayout.offset != 0 && !Sums::kOffsetIsGone;
  // Registers enough to sum the minima on the way?
  constexpr bool kLowToo = R * V <= S::kRegisters / 4;
  const std::size_t records = t.inputs / 32;
  F acc[R][V], low[R][V], head[V] = {}, low_head[V] = {};
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < V; ++c) acc[r][c] = low[r][c] = S::zero();
  }
  const std::byte* record = t.panel;
  const std::byte* fetch = t.fetch.begin;
  const std::byte* cell = t.rows + t.slot * 32;   // codes, at the first row's place
  const std::byte* values = t.rows + t.slot * 4;  // the 4-byte arrays, at the first row's place
  for (std::size_t b = 0; b < records;
       ++b, cell += kCell, values += kCell, record += kParts.bytes) {
    if constexpr (kLayout.heads()) {
      if (b % kHeadRecords == 0) {
        load_heads<S, kType, 0>(record, head);
        if constexpr (kLayout.minimum) load_heads<S, kType, 1>(record, low_head);
        record += kParts.head;
      }
    }
    if constexpr (R > 4) {  // fewer rows leave that to the processor, which then does it better
      if (t.cold)
        for (std::size_t i = 0; i < kParts.bytes; i += 64) S::prefetch(record + 4096 + i);
      if (fetch < t.fetch.end) {
        for (std::size_t i = 0; i < kParts.bytes; i += 64) S::prefetch(fetch + i);
        fetch += kParts.bytes;
      }
    }
    unrolled<kGroups>([&](auto group) {
      constexpr int g = group;
      Sums dots, fine;
      unrolled<kSteps>([&](auto in_group) {
        constexpr int kStep = g * kSteps + in_group;
        I w[V];
        UNROLL for (int c = 0; c < V; ++c) w[c] =
            unpack<S, kType, kStep>(record + c * S::kElements * 4);
        dots.template add<in_group, kSteps>(w, cell + kCellCodes + kStep * 4);
        if constexpr (kTwoTerms)
          fine.template add<in_group, kSteps>(w, cell + kCellFine + kStep * 4);
      });
      F d[V];
      UNROLL for (int c = 0; c < V; ++c) d[c] = load_scale<S, kType, 0>(record, g, c, head);
      I zero[V];
      if constexpr (kLayout.zeros) {
        UNROLL for (int c = 0; c < V; ++c) zero[c] =
            S::load_unsigned_bytes(record + kParts.zeros + c * S::kElements);
      }
      UNROLL for (int r = 0; r < R; ++r) {
        const F s = S::broadcast_float(values + kCellScales + r * 4);
        I excess;  // offset * sum of a
        if constexpr (kExcess)
          excess = S::template shift_left<shift_of(kLayout.offset)>(
              S::broadcast(values + kSums + g * 32 + r * 4));
        I activations;  // their sum
        if constexpr (kLayout.zeros) activations = S::broadcast(values + kSums + g * 32 + r * 4);
        UNROLL for (int c = 0; c < V; ++c) {
          I sum = dots.sums[r][c];
          if constexpr (kTwoTerms)
            sum = S::add_int(S::template shift_left<7>(sum), fine.sums[r][c]);
          if constexpr (kExcess) sum = S::sub_int(sum, excess);
          if constexpr (kLayout.zeros) sum = S::sub_int(sum, S::mul_int(zero[c], activations));
          acc[r][c] = S::fma(S::to_float(sum), S::mul(d[c], s), acc[r][c]);
        }
      }
    });
    if constexpr (kLayout.minimum && kLowToo)
      add_minima<S, kType, R>(record, values, low_head, low);
  }
  if constexpr (kLayout.minimum && !kLowToo) {
    values = t.rows + t.slot * 4;
    for (std::size_t b = 0; b < records; ++b, values += kCell) {
      if (kLayout.heads() && b % kHeadRecords == 0)
        load_heads<S, kType, 1>(t.panel + head_at(kParts, b), low_head);
      add_minima<S, kType, R>(t.panel + record_at(kParts, b), values, low_head, low);
    }
  }
  if constexpr (kLayout.minimum) {
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int c = 0; c < V; ++c) acc[r][c] = S::add(acc[r][c], low[r][c]);
    }
  }
  store_tile<S, R>(t, acc);
}

template <class S, DType kType>
inline typename S::F load_weight(const std::byte* at) {
  if constexpr (kType == DType::f32)
    return S::load_float(at);
  else if constexpr (kType == DType::f16)
    return S::load_half(at);
  else
    return S::load_brain(at);
}

// Two weights of 16 outputs each, of inputs 2i and 2i + 1 of a record; those of F8_E4M3 without their
// factor 2^-8.
template <class S, DType kType>
inline void load_pair(const std::byte* codes, std::uint32_t pair,
                      typename S::F (&first)[S::kVectors], typename S::F (&second)[S::kVectors]) {
  UNROLL for (int c = 0; c < S::kVectors; ++c) {
    if constexpr (kType == DType::f8_e4m3) {
      first[c] = S::load_e4m3(codes + 2 * pair * 16 + c * S::kElements);
      second[c] = S::load_e4m3(codes + (2 * pair + 1) * 16 + c * S::kElements);
    } else {
      const auto both = S::load_unsigned_bytes(codes + pair * 16 + c * S::kElements);
      first[c] = S::look_up_float(kLevelsNf4, S::mask(both, 15));
      second[c] = S::look_up_float(kLevelsNf4, S::template shift_right_16<4>(both));
    }
  }
}

// Plain weights that are coded: codes of a record share a scale.
template <class S, DType kType, int R>
__attribute__((noinline)) void coded_tile(const TileArgs& t) {
  using F = typename S::F;
  constexpr int V = S::kVectors;
  constexpr std::uint32_t kRun = coded_run(kType);
  F acc[R][V], scale[V];
  UNROLL for (int r = 0; r < R; ++r) { UNROLL for (int c = 0; c < V; ++c) acc[r][c] = S::zero(); }
  const std::byte *record = t.panel, *row = t.rows;
  for (std::uint32_t first = 0; first < t.inputs; first += kRun) {
    const std::uint32_t inputs = t.inputs - first < kRun ? t.inputs - first : kRun;
    UNROLL for (int c = 0; c < V; ++c) {
      scale[c] = S::load_float(record + c * S::kElements * 4);
      if constexpr (kType == DType::f8_e4m3) scale[c] = S::mul(scale[c], S::one_float(256.0f));
    }
    for (std::uint32_t i = 0; i < inputs / 2; ++i, row += 8) {
      F w[2][V];
      load_pair<S, kType>(record + kRunScales, i, w[0], w[1]);
      UNROLL for (int k = 0; k < 2; ++k) {
        UNROLL for (int c = 0; c < V; ++c) w[k][c] = S::mul(w[k][c], scale[c]);
        UNROLL for (int r = 0; r < R; ++r) {
          const F x = S::broadcast_float(row + r * t.row_bytes + k * 4);
          UNROLL for (int c = 0; c < V; ++c) acc[r][c] = S::fma(w[k][c], x, acc[r][c]);
        }
      }
    }
    record += run_bytes(kType, inputs);
  }
  store_tile<S, R>(t, acc);
}

template <class S, DType kType, int R>
__attribute__((noinline)) void plain_tile(const TileArgs& t) {
  using F = typename S::F;
  constexpr int kBytes = kType == DType::f32 ? 4 : 2;
  const std::byte* weights[S::kVectors];
  UNROLL for (int c = 0; c < S::kVectors; ++c) weights[c] = t.panel + c * S::kElements * kBytes;
  F acc[R][S::kVectors];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < S::kVectors; ++c) acc[r][c] = S::zero();
  }
  for (std::size_t k = 0; k < t.inputs; ++k) {
    F w[S::kVectors];
    UNROLL for (int c = 0; c < S::kVectors; ++c) w[c] =
        load_weight<S, kType>(weights[c] + k * 16 * kBytes);
    UNROLL for (int r = 0; r < R; ++r) {
      const F x = S::broadcast_float(t.rows + r * t.row_bytes + k * 4);
      UNROLL for (int c = 0; c < S::kVectors; ++c) acc[r][c] = S::fma(w[c], x, acc[r][c]);
    }
  }
  store_tile<S, R>(t, acc);
}

}  // namespace
}  // namespace quire
