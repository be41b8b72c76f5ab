// kernels/cuda/hadamard.cuh - the orthonormal Hadamard transform of a head, in the three ways that
// kernels hold one. It is its own inverse; stages go by the bits of the dimension, lowest first, so
// that all three give the same bits.
#pragma once

#include "kernels/cuda/ptx.cuh"

namespace quire::cuda {

template <int D>
constexpr float kHadamardNorm = D == 64    ? 0.125f
                                : D == 128 ? 0.08838834764831845f
                                           : 0.0625f;

__device__ __forceinline__ void butterfly(float& a, float& b) {
  const float sum = a + b;
  b = a - b;
  a = sum;
}
// The partner is in the lane `apart` away.
__device__ __forceinline__ float butterfly_lane(float x, std::uint32_t lane, std::uint32_t apart) {
  const float other = __shfl_xor_sync(~0u, x, apart);
  return lane & apart ? other - x : x + other;
}

// As accumulators have it: lane g * 4 + t has dimensions 8n + 2t and 8n + 2t + 1 of row g.
template <int kEighths>
__device__ __forceinline__ void rotate(float (&x)[kEighths][2], std::uint32_t lane) {
#pragma unroll
  for (int n = 0; n < kEighths; ++n) {
    butterfly(x[n][0], x[n][1]);
#pragma unroll
    for (int apart = 1; apart <= 2; apart *= 2)
#pragma unroll
      for (int j = 0; j < 2; ++j) x[n][j] = butterfly_lane(x[n][j], lane, apart);
  }
#pragma unroll
  for (int apart = 1; apart < kEighths; apart *= 2)
#pragma unroll
    for (int n = 0; n < kEighths; ++n)
      if ((n & apart) == 0)
#pragma unroll
        for (int j = 0; j < 2; ++j) butterfly(x[n][j], x[n + apart][j]);
#pragma unroll
  for (int n = 0; n < kEighths; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) x[n][j] *= kHadamardNorm<kEighths * 8>;
}

// As rope_store has it: lane l has dimensions kEach * l + j of both halves.
template <int kEach>
__device__ __forceinline__ void rotate_halves(float (&x)[2][kEach], std::uint32_t lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int apart = 1; apart < kEach; apart *= 2)
#pragma unroll
      for (int j = 0; j < kEach; ++j)
        if ((j & apart) == 0) butterfly(x[h][j], x[h][j + apart]);
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2)
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < kEach; ++j) x[h][j] = butterfly_lane(x[h][j], lane, apart);
#pragma unroll
  for (int j = 0; j < kEach; ++j) butterfly(x[0][j], x[1][j]);
#pragma unroll
  for (int h = 0; h < 2; ++h)
#pragma unroll
    for (int j = 0; j < kEach; ++j) x[h][j] *= kHadamardNorm<kEach * 64>;
}

// A thread per dimension; `room` holds one float for each.
__device__ __forceinline__ float rotate_block(float x, float* room, std::uint32_t dim) {
  const std::uint32_t d = threadIdx.x;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) x = butterfly_lane(x, d, apart);
  for (std::uint32_t apart = 32; apart < dim; apart *= 2) {
    __syncthreads();
    room[d] = x;
    __syncthreads();
    const float other = room[d ^ apart];
    x = d & apart ? other - x : x + other;
  }
  return x * (dim == 64 ? kHadamardNorm<64> : dim == 128 ? kHadamardNorm<128> : kHadamardNorm<256>);
}

}  // namespace quire::cuda
