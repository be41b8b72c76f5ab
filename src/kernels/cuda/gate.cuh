// kernels/cuda/gate.cuh - the gated activation: both factors are rounded to bf16 first, so that it
// does not matter whether they went through memory.
#pragma once

#include "kernels/cuda/ptx.cuh"

namespace quire::cuda {

__device__ __forceinline__ bf16 gated(float gate, float up, bool gelu) {
  const float x = __bfloat162float(__float2bfloat16_rn(gate));
  const float u = __bfloat162float(__float2bfloat16_rn(up));
  // gelu_tanh(x) = x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3))
  const float y = gelu ? 1.5957691216057308f * __fmaf_rn(0.044715f * x * x, x, x) : x;
  const float e = exp2_approx(-1.4426950408889634f * y);
  return __float2bfloat16_rn(__fdiv_rn(x, 1.0f + e) * u);
}

}  // namespace quire::cuda
