// kernels/cpu/linear_multiply.h - cuts a product into tiles and picks the tile function; see
// linear_tile.h.
#pragma once

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
  if constexpr (coded_run(kType) != 0)
    return coded_tile<S, kType, R>;
  else if constexpr (linear_layout(kType).code_bits == 0)
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
      TILES(iq4_xs);
      TILES(mxfp4);
      TILES(u4);
      TILES(u4_bf16);
    case DType::iq2_xs:  // two types of one layout
      TILES(iq2_s);
    case DType::iq2_xxs:
    case DType::iq3_xxs:
      TILES(iq3_s);
    case DType::f8_e4m3:
      return kTiles<S, DType::f8_e4m3>;
    case DType::nf4:
      return kTiles<S, DType::nf4>;
  }
#undef TILES
  return kTiles<S, DType::f32>;
}

inline std::uint32_t at_least_one(std::size_t n) {
  return n < 1 ? 1 : static_cast<std::uint32_t>(n);
}
inline std::uint32_t min_u32(std::uint32_t a, std::uint32_t b) { return a < b ? a : b; }

// Rows and panels that are worked through together: the panels stay in the first cache, the rows in
// the second (sizes: most of 32 KiB, half of 1 MiB).
constexpr std::size_t kPanelBytes = 24 << 10, kRowBytes = 512 << 10;

template <class S>
void multiply_tiles(const PackedMatrix& w, const ActivationRows& x, std::uint32_t row_begin,
                    std::uint32_t row_end, std::uint32_t column_begin, std::uint32_t column_end,
                    float* out, std::size_t out_stride, Fetch* fetch) {
  const TileSet& tiles = tiles_for<S>(w.type, x.mode);
  const bool plain = linear_layout(w.type).code_bits == 0;
  const std::size_t stride = panel_stride(w.type, w.inputs);
  TileArgs t;
  t.row_bytes = std::size_t{x.inputs} * 4;
  t.inputs = w.inputs;
  t.out_stride = out_stride;
  const std::size_t group_bytes =
      plain ? kRowGroup * t.row_bytes : x.inputs / kActivationBlock * cell_bytes(x.mode);
  const std::uint32_t rows_at_once = kRowGroup * at_least_one(kRowBytes / group_bytes);
  const std::uint32_t columns_at_once = kPanelOutputs * at_least_one(kPanelBytes / stride);
  const std::uint32_t end = min_u32(column_end, w.outputs);

  const auto multiply_part = [&](std::uint32_t r, std::uint32_t r_end, std::uint32_t c_begin,
                                 std::uint32_t c_end) {
    t.cold = true;
    while (r < r_end) {
      const std::uint32_t rows =
          min_u32(tiles.rows_max, min_u32(r_end - r, kRowGroup - r % kRowGroup));
      t.rows = plain ? reinterpret_cast<const std::byte*>(x.plain) + r * t.row_bytes
                     : activation_cell(x, r, 0);
      t.slot = r % kRowGroup;
      for (std::uint32_t c = c_begin; c < c_end; c += kPanelOutputs) {
        t.panel = w.data + c / kPanelOutputs * stride;
        t.width = min_u32(kPanelOutputs, w.outputs - c);
        t.out = out + r * out_stride + c;
        t.fetch = fetch ? next_part(*fetch, stride) : FetchPart{nullptr, nullptr};
        tiles.tile[rows - 1](t);
      }
      t.cold = false;
      r += rows;
    }
  };
  for (std::uint32_t r = row_begin; r < row_end;) {
    const std::uint32_t r_end = min_u32(row_end, (r + rows_at_once) / kRowGroup * kRowGroup);
    for (std::uint32_t c = column_begin; c < end; c += columns_at_once)
      multiply_part(r, r_end, c, min_u32(end, c + columns_at_once));
    r = r_end;
  }
}

// What a cell keeps of a block besides its codes; sums are those of inputs 0..15 and 16..31.
inline void store_sums(float scale, const std::int32_t (&sums)[2], bool halves, std::uint32_t slot,
                       std::byte* cell) {
  const std::int32_t sum = sums[0] + sums[1];
  const float scaled = scale * static_cast<float>(sum);
  std::byte* at = cell + slot * 4;
  std::memcpy(at + kCellScales, &scale, 4);
  std::memcpy(at + kCellSums, &sum, 4);
  std::memcpy(at + kCellScaledSums, &scaled, 4);
  for (int half = 0; halves && half < 2; ++half) {
    const float scaled_half = scale * static_cast<float>(sums[half]);
    std::memcpy(at + kCellHalfSums + half * 32, &sums[half], 4);
    std::memcpy(at + kCellScaledHalfSums + half * 32, &scaled_half, 4);
  }
}

template <bool kWide>
inline void quantize_block(const float* x, bool halves, std::uint32_t slot, std::byte* cell);

void quantize(const float* x, std::uint32_t row, std::uint32_t first, std::uint32_t count,
              const ActivationRows& into) {
  std::byte* cell = activation_cell(into, row, first / kActivationBlock);
  const std::uint32_t slot = row % kRowGroup;
  if (into.mode == Activations::int16) {
    for (std::uint32_t i = 0; i < count; i += 32, cell += cell_bytes(Activations::int16))
      quantize_block<true>(x + i, into.half_sums, slot, cell);
  } else {
    for (std::uint32_t i = 0; i < count; i += 32, cell += cell_bytes(Activations::int8))
      quantize_block<false>(x + i, into.half_sums, slot, cell);
  }
}

}  // namespace
}  // namespace quire
