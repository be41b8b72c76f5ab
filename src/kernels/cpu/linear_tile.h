// kernels/cpu/linear_tile.h - the linear kernels over a vector of S::kLanes outputs, once for all
// instruction sets.
//
// linear_avx2.cc, linear_avx512.cc and linear_vnni.cc each define S, a handful of instructions, and
// include this. One tile is R rows times C vectors: a weight is loaded and unpacked once and used
// for R rows, an activation is broadcast once and used for C vectors. Each lane is one output and
// adds its groups in order, so R and C change no bits.
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
  PanelParts parts;
  const std::byte* rows;  // the first cell; plain weights: the first row's inputs
  std::uint32_t slot;     // the first row's place in the cell
  std::size_t row_bytes;  // plain weights: from row to row
  std::uint32_t inputs;
  float* out;  // first row, first column
  std::size_t out_stride;
  std::uint32_t width;  // columns to write
};

// Bytes from the first panel to vector c, in an array whose elements have `element` bytes per
// output.
template <class S>
inline std::size_t vector_at(const TileArgs& t, int c, int element) {
  const std::size_t lane = static_cast<std::size_t>(c) * S::kLanes;
  return lane / kLinearLanes * t.parts.stride + lane % kLinearLanes * element;
}

template <class S, int R, int C>
inline void store_tile(const TileArgs& t, typename S::F (&acc)[R][C]) {
  UNROLL for (int r = 0; r < R; ++r) {
    UNROLL for (int c = 0; c < C; ++c) {
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
template <class S, DType kType, bool kTwoTerms, int R, int C>
inline void step(const typename S::I (&w)[C], const std::byte* codes, int k4,
                 typename S::I (&dot)[R][C], typename S::I (&fine)[R][C]) {
  constexpr bool kByteCodes = kType == DType::q8_0 || kType == DType::iq4_nl;  // past 127
  UNROLL for (int r = 0; r < R; ++r) {
    const auto a = S::broadcast(codes + kCellCodes + r * 32 + k4 * 4);
    UNROLL for (int c = 0; c < C; ++c) dot[r][c] = S::template dot<kByteCodes>(dot[r][c], w[c], a);
  }
  if constexpr (kTwoTerms) {
    UNROLL for (int r = 0; r < R; ++r) {
      const auto a = S::broadcast(codes + kCellFine + r * 32 + k4 * 4);
      UNROLL for (int c = 0; c < C; ++c) fine[r][c] =
          S::template dot<kByteCodes>(fine[r][c], w[c], a);
    }
  }
}

template <class S, DType kType, bool kTwoTerms, int R, int C>
__attribute__((noinline)) void quantized_tile(const TileArgs& t) {
  using I = typename S::I;
  using F = typename S::F;
  constexpr LinearLayout kLayout = linear_layout(kType);
  constexpr int kScaleBytes = kLayout.half_scales ? 2 : 4;
  constexpr int kSteps = kLayout.group / 4;
  constexpr int kGroups = 32 / kLayout.group;  // per cell
  constexpr std::size_t kCell = cell_bytes(kTwoTerms ? Activations::int16 : Activations::int8);
  const std::size_t cells = t.inputs / 32;
  const std::byte *codes[C], *scales[C];
  UNROLL for (int c = 0; c < C; ++c) {
    codes[c] = t.panel + vector_at<S>(t, c, 4);
    scales[c] = t.panel + t.parts.scales + vector_at<S>(t, c, kScaleBytes);
  }
  F acc[R][C];
  UNROLL for (int r = 0; r < R; ++r) { UNROLL for (int c = 0; c < C; ++c) acc[r][c] = S::zero(); }
  const std::byte* cell = t.rows + t.slot * 32;   // codes, at the first row's place
  const std::byte* values = t.rows + t.slot * 4;  // the 4-byte arrays, at the first row's place
  for (std::size_t b = 0; b < cells; ++b, cell += kCell, values += kCell) {
    UNROLL for (int half = 0; half < kGroups; ++half) {
      I dot[R][C], fine[R][C];
      UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int c = 0; c < C; ++c) dot[r][c] = fine[r][c] = S::zero_int();
      }
      UNROLL for (int k4 = 0; k4 < kSteps; k4 += 2) {
        I w[2][C];
        UNROLL for (int c = 0; c < C; ++c) {
          if constexpr (kLayout.code_bits == 4) {
            const I both = S::load_int(codes[c] + (half * kSteps + k4) / 2 * 64);
            w[0][c] = S::low_nibbles(both);
            w[1][c] = S::high_nibbles(both);
            if constexpr (kLayout.table) {
              w[0][c] = S::look_up(w[0][c]);
              w[1][c] = S::look_up(w[1][c]);
            }
          } else {
            w[0][c] = S::load_int(codes[c] + (half * kSteps + k4) * 64);
            w[1][c] = S::load_int(codes[c] + (half * kSteps + k4) * 64 + 64);
          }
        }
        step<S, kType, kTwoTerms, R, C>(w[0], cell, half * kSteps + k4, dot, fine);
        step<S, kType, kTwoTerms, R, C>(w[1], cell, half * kSteps + k4 + 1, dot, fine);
      }
      F d[C];
      UNROLL for (int c = 0; c < C; ++c) {
        d[c] = load_scale<S, kType>(scales[c]);
        scales[c] += 16 * kScaleBytes;
      }
      UNROLL for (int r = 0; r < R; ++r) {
        const F s = S::broadcast_float(values + kCellScales + r * 4);
        constexpr std::size_t kSums = kGroups == 1 ? kCellSums : kCellHalfSums;
        I excess;  // offset * sum of a
        if constexpr (kLayout.offset != 0)
          excess = S::template shift_left<shift_of(kLayout.offset)>(
              S::broadcast(values + kSums + half * 32 + r * 4));
        UNROLL for (int c = 0; c < C; ++c) {
          I sum = dot[r][c];
          if constexpr (kTwoTerms) sum = S::add_int(S::template shift_left<7>(sum), fine[r][c]);
          if constexpr (kLayout.offset != 0) sum = S::sub_int(sum, excess);
          acc[r][c] = S::fma(S::to_float(sum), S::mul(d[c], s), acc[r][c]);
        }
      }
    }
    UNROLL for (int c = 0; c < C; ++c) codes[c] += 64 * kLayout.code_bits;
  }
  if constexpr (kLayout.minimum) {
    F low[R][C];
    UNROLL for (int r = 0; r < R; ++r) { UNROLL for (int c = 0; c < C; ++c) low[r][c] = S::zero(); }
    const std::byte* minima[C];
    UNROLL for (int c = 0; c < C; ++c) minima[c] =
        t.panel + t.parts.minima + vector_at<S>(t, c, kScaleBytes);
    values = t.rows + t.slot * 4;
    for (std::size_t b = 0; b < cells; ++b, values += kCell) {
      UNROLL for (int half = 0; half < kGroups; ++half) {
        constexpr std::size_t kSums = kGroups == 1 ? kCellScaledSums : kCellScaledHalfSums;
        F m[C];
        UNROLL for (int c = 0; c < C; ++c) {
          m[c] = load_scale<S, kType>(minima[c]);
          minima[c] += 16 * kScaleBytes;
        }
        UNROLL for (int r = 0; r < R; ++r) {
          const F sum = S::broadcast_float(values + kSums + half * 32 + r * 4);
          UNROLL for (int c = 0; c < C; ++c) low[r][c] = S::fma(m[c], sum, low[r][c]);
        }
      }
    }
    UNROLL for (int r = 0; r < R; ++r) {
      UNROLL for (int c = 0; c < C; ++c) acc[r][c] = S::add(acc[r][c], low[r][c]);
    }
  }
  store_tile<S, R, C>(t, acc);
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

template <class S, DType kType, int R, int C>
__attribute__((noinline)) void plain_tile(const TileArgs& t) {
  using F = typename S::F;
  constexpr int kBytes = kType == DType::f32 ? 4 : 2;
  const std::byte* weights[C];
  UNROLL for (int c = 0; c < C; ++c) weights[c] = t.panel + vector_at<S>(t, c, kBytes);
  F acc[R][C];
  UNROLL for (int r = 0; r < R; ++r) { UNROLL for (int c = 0; c < C; ++c) acc[r][c] = S::zero(); }
  for (std::size_t k = 0; k < t.inputs; ++k) {
    F w[C];
    UNROLL for (int c = 0; c < C; ++c) w[c] = load_weight<S, kType>(weights[c] + k * 16 * kBytes);
    UNROLL for (int r = 0; r < R; ++r) {
      const F x = S::broadcast_float(t.rows + r * t.row_bytes + k * 4);
      UNROLL for (int c = 0; c < C; ++c) acc[r][c] = S::fma(w[c], x, acc[r][c]);
    }
  }
  store_tile<S, R, C>(t, acc);
}

}  // namespace
}  // namespace quire
