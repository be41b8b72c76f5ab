// kernels/cuda/packed.h - where activations lie.
//
// Up to kPackedRowsMax rows are stored as the B fragments of m16n8k16, so that a chunk of K is one
// contiguous copy and a thread of a warp reads its part with one load: [K / 32][tiles of 8 rows]
// [32 threads][16 bytes]. Thread g * 4 + t holds row g of the tile and, for each of two steps of
// 16, the pairs k = 2t and k = 2t + 8. More rows are stored as plain rows.
#pragma once

#include "kernels/cuda/api.h"

namespace quire {

QUIRE_HOST_DEVICE constexpr std::uint32_t row_tiles(std::uint32_t rows) {  // of packed ones
  return rows <= 8 ? 1 : rows <= 16 ? 2 : 4;
}

// Element index of (row, k) among activations of `rows` rows and `width` columns.
QUIRE_HOST_DEVICE constexpr std::size_t activation_at(std::uint32_t rows, std::uint32_t width,
                                                      std::uint32_t row, std::uint32_t k) {
  if (rows > kPackedRowsMax) return std::size_t{row} * width + k;
  const std::uint32_t lane = (row % 8) * 4 + (k % 8) / 2;
  return (std::size_t{k / 32} * row_tiles(rows) + row / 8) * 256 + lane * 8 + (k % 32) / 16 * 4 +
         (k % 16) / 8 * 2 + k % 2;
}

// Elements a buffer of activations needs.
QUIRE_HOST_DEVICE constexpr std::size_t activation_elements(std::uint32_t rows,
                                                            std::uint32_t width) {
  return std::size_t{rows > kPackedRowsMax ? (rows > kLibraryRows ? rows : kLibraryRows)
                                           : row_tiles(rows) * 8} *
         width;
}

// Byte offset of element d of a slot's key within a bf16 page; values follow after kCudaPage * dim
// * 2 bytes. Blocks of 64 dimensions, a row of 128 bytes for each slot, its 16-byte chunks permuted.
QUIRE_HOST_DEVICE constexpr std::uint32_t page_at(std::uint32_t slot, std::uint32_t d) {
  return d / 64 * (kCudaPage * 128) + slot * 128 + ((d % 64 / 8 ^ (slot & 7)) << 4) + d % 8 * 2;
}

}  // namespace quire
