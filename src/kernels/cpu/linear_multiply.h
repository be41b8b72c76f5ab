// kernels/cpu/linear_multiply.h - cuts a product into tiles and picks the tile function; see
// linear_tile.h.
#pragma once

#include <utility>

#include "kernels/cpu/linear_tile.h"

namespace quire {
namespace {

// The tiles of one weight type, by rows.
struct TileSet {
  void (*tile[kRowGroup])(const TileArgs&);
  std::uint32_t rows_max;
};

template <class S, DType kType, bool kTwoTerms, int R>
constexpr auto tile_function() {
  if constexpr (linear_layout(kType).code_bits == 0)
    return plain_tile<S, kType, R>;
  else
    return quantized_tile<S, kType, kTwoTerms, R>;
}

template <class S, DType kType, bool kTwoTerms, int... kLess>
constexpr TileSet tile_set(std::integer_sequence<int, kLess...>) {
  return {{tile_function<S, kType, kTwoTerms, kLess + 1>()...}, sizeof...(kLess)};
}

template <class S, DType kType, bool kTwoTerms>
constexpr TileSet tile_set() {
  return tile_set<S, kType, kTwoTerms>(
      std::make_integer_sequence<int, S::template rows_max<kTwoTerms>()>());
}

template <class S, DType kType>
constexpr TileSet kTiles = tile_set<S, kType, false>();
template <class S, DType kType>
constexpr TileSet kTilesTwoTerms = tile_set<S, kType, true>();

template <class S>
const TileSet& tiles_for(DType type, Activations mode) {
  const bool two = mode == Activations::int16;
#define TILES(t) \
  case DType::t: \
    return two ? kTilesTwoTerms<S, DType::t> : kTiles<S, DType::t>
  switch (type) {
    case DType::f32:
      return kTiles<S, DType::f32>;
    case DType::f16:
      return kTiles<S, DType::f16>;
    case DType::bf16:
      return kTiles<S, DType::bf16>;
      TILES(q4_0);
      TILES(q4_1);
      TILES(q5_0);
      TILES(q5_1);
      TILES(q8_0);
      TILES(q2_k);
      TILES(q3_k);
      TILES(q4_k);
      TILES(q5_k);
      TILES(q6_k);
      TILES(iq4_nl);
  }
#undef TILES
  return kTiles<S, DType::f32>;
}

inline std::uint32_t min_u32(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }

template <class S>
void multiply_tiles(const PackedMatrix& w, const ActivationRows& x, std::uint32_t row_begin,
                    std::uint32_t row_end, std::uint32_t column_begin, std::uint32_t column_end,
                    float* out, std::size_t out_stride) {
  const TileSet& tiles = tiles_for<S>(w.type, x.mode);
  const bool plain = linear_layout(w.type).code_bits == 0;
  TileArgs t;
  const std::size_t stride = panel_stride(w.type, w.inputs);
  t.row_bytes = std::size_t{x.inputs} * 4;
  t.inputs = w.inputs;
  t.out_stride = out_stride;
  // A panel is used for all rows before the next one: it stays in the first cache.
  for (std::uint32_t column = column_begin; column < min_u32(column_end, w.outputs);
       column += kLinearLanes) {
    t.panel = w.data + column / kLinearLanes * stride;
    t.width = min_u32(kLinearLanes, w.outputs - column);
    for (std::uint32_t r = row_begin; r < row_end;) {
      const std::uint32_t rows =
          min_u32(tiles.rows_max, min_u32(row_end - r, kRowGroup - r % kRowGroup));
      t.rows = plain ? reinterpret_cast<const std::byte*>(x.plain) + r * t.row_bytes
                     : activation_cell(x, r, 0);
      t.cold = r == row_begin;
      t.slot = r % kRowGroup;
      t.out = out + r * out_stride + column;
      tiles.tile[rows - 1](t);
      r += rows;
    }
  }
}

// What a cell keeps of a block besides its codes; sums are those of inputs 0..15 and 16..31.
inline void store_sums(float scale, const std::int32_t (&sums)[2], std::uint32_t slot,
                       std::byte* cell) {
  const std::int32_t sum = sums[0] + sums[1];
  const float scaled = scale * static_cast<float>(sum);
  std::byte* at = cell + slot * 4;
  std::memcpy(at + kCellScales, &scale, 4);
  std::memcpy(at + kCellSums, &sum, 4);
  std::memcpy(at + kCellScaledSums, &scaled, 4);
  for (int half = 0; half < 2; ++half) {
    const float scaled_half = scale * static_cast<float>(sums[half]);
    std::memcpy(at + kCellHalfSums + half * 32, &sums[half], 4);
    std::memcpy(at + kCellScaledHalfSums + half * 32, &scaled_half, 4);
  }
}

inline void quantize_block(const float* x, bool wide, std::uint32_t slot, std::byte* cell);

void quantize(const float* x, std::uint32_t row, std::uint32_t first, std::uint32_t count,
              const ActivationRows& into) {
  std::byte* cell = activation_cell(into, row, first / kActivationBlock);
  for (std::uint32_t i = 0; i < count; i += kActivationBlock, cell += cell_bytes(into.mode))
    quantize_block(x + i, into.mode == Activations::int16, row % kRowGroup, cell);
}

}  // namespace
}  // namespace quire
