// tensor/grids.h - weight types whose codes are points of a grid: IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS
// and IQ3_S. Eight (IQ3: four) neighbours are one entry of a table, with signs of their own.
//
// The tables and the places of bits are constants of the formats; they were read in quants.py of the
// gguf package 0.19.
//
//   const GridBlock b = grid_block(DType::iq2_xs, bytes);   // 256 elements
//   value[i] = b.scale * b.factors[i / 16] * b.codes[i]
#pragma once

#include <cstdint>

#include "tensor/dtype.h"

namespace quire {

struct GridBlock {
  float scale;
  std::int8_t factors[16];  // of 16 elements each
  std::int8_t codes[256];
};

bool is_grid(DType type);
GridBlock grid_block(DType type, const std::uint8_t* block);

}  // namespace quire
