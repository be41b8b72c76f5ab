// kernels/cuda/linear_rows.cuh - stores the sums of a matrix product of few rows.
#pragma once

#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/packed.h"

namespace quire::cuda {

// A warp's 16 outputs from `first` on, for its tiles of 8 rows: a lane has outputs g and g + 8, rows
// 2t and 2t + 1 of each tile.
template <LinearOutput kKind, int kMine>
__device__ __forceinline__ void store_outputs(const LinearArgs& a, const float (&sums)[kMine][4],
                                              std::uint32_t first, std::uint32_t first_tile,
                                              std::uint32_t lane) {
  const std::uint32_t g = lane / 4, t = lane % 4, output = first + g;
#pragma unroll
  for (int n = 0; n < kMine; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t r = (first_tile + n) * 8 + 2 * t + i;
      if (r >= a.rows) continue;
      if constexpr (kKind == LinearOutput::gated || kKind == LinearOutput::gated_gelu) {
        if (output >= a.outputs) continue;
        static_cast<bf16*>(a.output)[activation_at(a.rows, a.outputs / 2, r, first / 2 + g)] =
            gated(sums[n][i], sums[n][2 + i], kKind == LinearOutput::gated_gelu);
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (output + 8 * j >= a.outputs) continue;
          const std::size_t at = std::size_t{r} * a.outputs + output + 8 * j;
          const float y = sums[n][2 * j + i];
          if constexpr (kKind == LinearOutput::rows_f32)
            static_cast<float*>(a.output)[at] = y;
          else
            static_cast<bf16*>(a.output)[at] = __float2bfloat16_rn(y);
        }
      }
    }
  }
}

}  // namespace quire::cuda
