// kernels/cpu/linear_tile.h - the linear kernels over a vector of S::kLanes outputs, once for all
// instruction sets.
//
// linear_avx2.cc, linear_avx512.cc and linear_vnni.cc each define S, a handful of instructions, and
// include this. A tile is R rows times one panel: a weight is loaded and unpacked once and used for
// R rows. Each lane is one output and adds its groups in order, so R changes no bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/linear_layout.h"

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
};

template <class S, int R>
inline void store_tile(const TileArgs& t, typename S::F (&acc)[R][S::kVectors]) {
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < S::kVectors; ++c) {
      const std::uint32_t first = static_cast<std::uint32_t>(c) * S::kLanes;
      if (first < t.width) S::store(t.out + r * t.out_stride + first, acc[r][c], t.width - first);
    }
  }
}

template <class S, DType kType>
inline typename S::F load_scale(const std::byte* at) {
  if constexpr (linear_layout(kType).half_scales)
    return S::load_half(at);
  else
    return S::load_float(at);
}

// One step of four inputs: vectors w[c] of codes against R broadcast activations.
template <class S, DType kType, bool kTwoTerms, int R>
inline void step(const typename S::I (&w)[S::kVectors], const std::byte* codes, int k4,
                 typename S::I (&dot)[R][S::kVectors], typename S::I (&fine)[R][S::kVectors]) {
  constexpr bool kByteCodes = kType == DType::q8_0 || kType == DType::iq4_nl;  // past 127
  UNROLL for (int r = 0; r < R; ++r) {
    const auto a = S::broadcast(codes + kCellCodes + r * 32 + k4 * 4);
    UNROLL for (int c = 0; c < S::kVectors; ++c) dot[r][c] =
        S::template dot<kByteCodes>(dot[r][c], w[c], a);
  }
  if constexpr (kTwoTerms) {
    UNROLL for (int r = 0; r < R; ++r) {
      const auto a = S::broadcast(codes + kCellFine + r * 32 + k4 * 4);
      UNROLL for (int c = 0; c < S::kVectors; ++c) fine[r][c] =
          S::template dot<kByteCodes>(fine[r][c], w[c], a);
    }
  }
}

// The minimum terms of one record.
template <class S, DType kType, int R>
inline void add_minima(const std::byte* record, const std::byte* values,
                       typename S::F (&low)[R][S::kVectors]) {
  constexpr LinearLayout kLayout = linear_layout(kType);
  constexpr int kScaleBytes = kLayout.half_scales ? 2 : 4;
  constexpr std::size_t kSums = kLayout.group == 32 ? kCellScaledSums : kCellScaledHalfSums;
  UNROLL for (int half = 0; half < 32 / kLayout.group; ++half) {
    typename S::F m[S::kVectors];
    UNROLL for (int c = 0; c < S::kVectors; ++c) {
      m[c] = load_scale<S, kType>(record + record_parts(kType).minima + half * 16 * kScaleBytes +
                                  c * S::kLanes * kScaleBytes);
    }
    UNROLL for (int r = 0; r < R; ++r) {
      const auto sum = S::broadcast_float(values + kSums + half * 32 + r * 4);
      UNROLL for (int c = 0; c < S::kVectors; ++c) low[r][c] = S::fma(m[c], sum, low[r][c]);
    }
  }
}

template <class S, DType kType, bool kTwoTerms, int R>
__attribute__((noinline)) void quantized_tile(const TileArgs& t) {
  using I = typename S::I;
  using F = typename S::F;
  constexpr LinearLayout kLayout = linear_layout(kType);
  constexpr int kScaleBytes = kLayout.half_scales ? 2 : 4;
  constexpr int kSteps = kLayout.group / 4;
  constexpr int kGroups = 32 / kLayout.group;  // per cell
  constexpr std::size_t kCell = cell_bytes(kTwoTerms ? Activations::int16 : Activations::int8);
  const std::size_t cells = t.inputs / 32;
  constexpr RecordParts kParts = record_parts(kType);
  constexpr bool kLowToo =
      R * S::kVectors <= S::kRegisters / 4;  // registers enough to sum the minima on the way
  const std::byte* record = t.panel;
  F acc[R][S::kVectors], low[R][S::kVectors];
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < S::kVectors; ++c) acc[r][c] = low[r][c] = S::zero();
  }
  const std::byte* cell = t.rows + t.slot * 32;   // codes, at the first row's place
  const std::byte* values = t.rows + t.slot * 4;  // the 4-byte arrays, at the first row's place
  for (std::size_t b = 0; b < cells; ++b, cell += kCell, values += kCell, record += kParts.bytes) {
    if constexpr (R > 4) {  // fewer rows leave that to the processor, which then does it better
      if (t.cold)
        for (std::size_t i = 0; i < kParts.bytes; i += 64) S::prefetch(record + 4096 + i);
    }
    UNROLL for (int half = 0; half < kGroups; ++half) {
      I dot[R][S::kVectors], fine[R][S::kVectors];
      UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int c = 0; c < S::kVectors; ++c) dot[r][c] = fine[r][c] = S::zero_int();
      }
      UNROLL for (int k4 = 0; k4 < kSteps; k4 += 2) {
        I w[2][S::kVectors];
        UNROLL for (int c = 0; c < S::kVectors; ++c) {
          if constexpr (kLayout.code_bits == 4) {
            const I both = S::load_int(record + c * S::kLanes * 4 + (half * kSteps + k4) / 2 * 64);
            w[0][c] = S::low_nibbles(both);
            w[1][c] = S::high_nibbles(both);
            if constexpr (kLayout.table) {
              w[0][c] = S::look_up(w[0][c]);
              w[1][c] = S::look_up(w[1][c]);
            }
          } else {
            w[0][c] = S::load_int(record + c * S::kLanes * 4 + (half * kSteps + k4) * 64);
            w[1][c] = S::load_int(record + c * S::kLanes * 4 + (half * kSteps + k4) * 64 + 64);
          }
        }
        step<S, kType, kTwoTerms, R>(w[0], cell, half * kSteps + k4, dot, fine);
        step<S, kType, kTwoTerms, R>(w[1], cell, half * kSteps + k4 + 1, dot, fine);
      }
      F d[S::kVectors];
      UNROLL for (int c = 0; c < S::kVectors; ++c) {
        d[c] = load_scale<S, kType>(record + kParts.scales + half * 16 * kScaleBytes +
                                    c * S::kLanes * kScaleBytes);
      }
      UNROLL for (int r = 0; r < R; ++r) {
        const F s = S::broadcast_float(values + kCellScales + r * 4);
        constexpr std::size_t kSums = kGroups == 1 ? kCellSums : kCellHalfSums;
        I excess;  // offset * sum of a
        if constexpr (kLayout.offset != 0)
          excess = S::template shift_left<shift_of(kLayout.offset)>(
              S::broadcast(values + kSums + half * 32 + r * 4));
        UNROLL for (int c = 0; c < S::kVectors; ++c) {
          I sum = dot[r][c];
          if constexpr (kTwoTerms) sum = S::add_int(S::template shift_left<7>(sum), fine[r][c]);
          if constexpr (kLayout.offset != 0) sum = S::sub_int(sum, excess);
          acc[r][c] = S::fma(S::to_float(sum), S::mul(d[c], s), acc[r][c]);
        }
      }
    }
    if constexpr (kLayout.minimum && kLowToo) add_minima<S, kType, R>(record, values, low);
  }
  if constexpr (kLayout.minimum) {
    if constexpr (!kLowToo) {
      record = t.panel;
      values = t.rows + t.slot * 4;
      for (std::size_t b = 0; b < cells; ++b, values += kCell, record += kParts.bytes)
        add_minima<S, kType, R>(record, values, low);
    }
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int c = 0; c < S::kVectors; ++c) acc[r][c] = S::add(acc[r][c], low[r][c]);
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

template <class S, DType kType, int R>
__attribute__((noinline)) void plain_tile(const TileArgs& t) {
  using F = typename S::F;
  constexpr int kBytes = kType == DType::f32 ? 4 : 2;
  const std::byte* weights[S::kVectors];
  UNROLL for (int c = 0; c < S::kVectors; ++c) weights[c] = t.panel + c * S::kLanes * kBytes;
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
