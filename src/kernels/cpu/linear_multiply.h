// kernels/cpu/linear_multiply.h - cuts a product into tiles and picks the tile function; see
// linear_tile.h.
#pragma once

#include "kernels/cpu/linear_tile.h"

namespace quire {
namespace {

using Tile = void (*)(const TileArgs&);

// The tiles of one weight type: of 1, 2, 4 and 8 rows, one panel wide and as wide as suits that
// many rows.
struct TileSet {
  Tile one[4], wide[4];
  std::uint32_t wide_panels[4];
  std::uint32_t levels;  // how many of the four there are
};

template <class S, DType kType, bool kTwoTerms, int R, int C>
constexpr Tile tile_function() {
  if constexpr (linear_layout(kType).code_bits == 0)
    return plain_tile<S, kType, R, C*(16 / S::kLanes)>;
  else
    return quantized_tile<S, kType, kTwoTerms, R, C*(16 / S::kLanes)>;
}

template <class S, DType kType, bool kTwoTerms>
constexpr TileSet tile_set() {
  // Two terms take twice the registers, and AVX2 has half as many.
  constexpr std::uint32_t kLevels = S::kLanes == 16 ? (kTwoTerms ? 3 : 4) : (kTwoTerms ? 2 : 3);
  constexpr int kWide1 = S::kLanes == 16 ? 4 : 2, kWide4 = S::kLanes == 16 ? 2 : 1;
  constexpr int kMax = 1 << (kLevels - 1);
  constexpr int k4 = kMax < 4 ? kMax : 4, k8 = kMax < 8 ? kMax : 8;
  return {
      {tile_function<S, kType, kTwoTerms, 1, 1>(), tile_function<S, kType, kTwoTerms, 2, 1>(),
       tile_function<S, kType, kTwoTerms, k4, 1>(), tile_function<S, kType, kTwoTerms, k8, 1>()},
      {tile_function<S, kType, kTwoTerms, 1, kWide1>(),
       tile_function<S, kType, kTwoTerms, 2, kWide4>(),
       tile_function<S, kType, kTwoTerms, k4, kWide4>(),
       tile_function<S, kType, kTwoTerms, k8, kWide4>()},
      {kWide1, kWide4, kWide4, kWide4},
      kLevels};
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

// The largest of the tiles' row counts that fits into `rows`.
inline std::uint32_t level_for(std::uint32_t rows, std::uint32_t levels) {
  std::uint32_t level = 0;
  while (level + 1 < levels && (2u << level) <= rows) ++level;
  return level;
}

template <class S>
void multiply_tiles(const PackedMatrix& w, const ActivationRows& x, std::uint32_t row_begin,
                    std::uint32_t row_end, std::uint32_t column_begin, std::uint32_t column_end,
                    float* out, std::size_t out_stride) {
  const TileSet& tiles = tiles_for<S>(w.type, x.mode);
  const bool plain = linear_layout(w.type).code_bits == 0;
  TileArgs t;
  t.parts = panel_parts(w.type, w.inputs);
  t.row_bytes = std::size_t{x.inputs} * 4;
  t.inputs = w.inputs;
  t.out_stride = out_stride;
  const std::uint32_t panel_end = (column_end + kLinearLanes - 1) / kLinearLanes;
  const std::uint32_t whole_group =
      level_for(min_u32(row_end - row_begin, kRowGroup), tiles.levels);
  const std::uint32_t panels_at_once = tiles.wide_panels[whole_group];
  for (std::uint32_t p = column_begin / kLinearLanes; p < panel_end; p += panels_at_once) {
    const std::uint32_t panels = min_u32(panels_at_once, panel_end - p);
    for (std::uint32_t r = row_begin; r < row_end;) {
      const std::uint32_t fit = min_u32(row_end - r, kRowGroup - r % kRowGroup);
      const std::uint32_t level = level_for(fit, tiles.levels);
      t.rows = plain ? reinterpret_cast<const std::byte*>(x.plain) + r * t.row_bytes
                     : activation_cell(x, r, 0);
      t.slot = r % kRowGroup;
      for (std::uint32_t done = 0; done < panels;) {
        const bool wide = panels - done >= tiles.wide_panels[level];
        const std::uint32_t first = p + done, column = first * kLinearLanes;
        t.panel = w.data + first * t.parts.stride;
        t.out = out + r * out_stride + column;
        t.width = min_u32(w.outputs, column_end) - column;
        (wide ? tiles.wide : tiles.one)[level](t);
        done += wide ? tiles.wide_panels[level] : 1;
      }
      r += 1u << level;
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
