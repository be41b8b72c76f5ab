// Full pages of bf16 rows become codes: a block of threads per page, a warp per row at a time.
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/sealed.h"

namespace quire::cuda {
namespace {

constexpr int kThreads = 256;

// As format/codec.h says: NaN is 0, and what f16 cannot hold its largest number.
__device__ __forceinline__ float cleaned(float x) {
  return x == x ? fminf(fmaxf(x, -65504.0f), 65504.0f) : 0.0f;
}

template <CudaKvFormat kFormat>
__device__ __forceinline__ float scale_of(float most) {  // of int2: of the root mean square
  const float x = most / sealed_code_max(kFormat);
  if constexpr (kFormat == CudaKvFormat::int8) return fmaxf(x, 1e-6f);
  if constexpr (kFormat == CudaKvFormat::fp8)  // the next power of two: dividing by it is exact
    return __uint_as_float((__float_as_uint(fmaxf(x, kFp8LeastScale)) + 0x7fffffu) & 0xff800000u);
  return x;
}

template <CudaKvFormat kFormat>
__device__ __forceinline__ std::uint32_t code_of(float x) {
  if constexpr (kFormat == CudaKvFormat::fp8)
    return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
  if constexpr (kFormat == CudaKvFormat::int8)
    return static_cast<std::uint32_t>(__float2int_rn(fminf(fmaxf(x, -127.0f), 127.0f)) + 128);
  constexpr float kHalf = kFormat == CudaKvFormat::int4 ? 8.0f : 2.0f;
  return static_cast<std::uint32_t>(
      __float2int_rd(fminf(fmaxf(x + kHalf, 0.0f), 2 * kHalf - 1.0f)));
}

template <int D, CudaKvFormat kFormat>
__global__ void __launch_bounds__(kThreads) seal_kernel(const SealArgs a) {
  constexpr std::uint32_t kBytes = sealed_page_bytes(kFormat, D), kEach = D / 32;
  __shared__ __align__(16) std::uint8_t page[kBytes];
  allow_next();
  wait_for_previous();
  if (blockIdx.x >= *a.count) return;
  const SealPair pair = a.pairs[blockIdx.x];
  const std::byte* from =
      a.arena + std::size_t{pair.rows} * 256 + a.row_layer_offset + blockIdx.y * a.row_page_bytes;
  std::byte* to =
      a.arena + std::size_t{pair.sealed} * 256 + a.layer_offset + blockIdx.y * a.page_bytes;
  for (std::uint32_t i = threadIdx.x; i < kBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(page)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t row = threadIdx.x / 32; row < 2 * kCudaPage; row += kThreads / 32) {
    const std::uint32_t side = row / kCudaPage, slot = row % kCudaPage;
    float x[kEach], most = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      x[i] = cleaned(__bfloat162float(*reinterpret_cast<const bf16*>(
          from + side * (kCudaPage * D * 2) + page_at(slot, lane * kEach + i))));
      most = fmaxf(most, fabsf(x[i]));
      squares = __fmaf_rn(x[i], x[i], squares);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
      if constexpr (kFormat == CudaKvFormat::int2)
        squares += __shfl_xor_sync(~0u, squares, apart);
      else
        most = fmaxf(most, __shfl_xor_sync(~0u, most, apart));
    if constexpr (kFormat == CudaKvFormat::int2) most = __fsqrt_rn(squares / D);
    const __half scale = __float2half_ru(scale_of<kFormat>(most));
    if (lane == 0)
      *reinterpret_cast<__half*>(page + sealed_scale_at(kFormat, D, side, slot)) = scale;
    const float step = __half2float(scale), inverse = step > 0 ? __frcp_rn(step) : 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const SealedPlace at = sealed_code_at(kFormat, D, side, slot, lane * kEach + i);
      const std::uint32_t code = code_of<kFormat>(x[i] * inverse);
      if constexpr (sealed_bits(kFormat) < 8)  // lanes share a byte
        atomicOr(reinterpret_cast<unsigned*>(page) + at.byte / 4,
                 code << (at.byte % 4 * 8 + at.shift));
      else
        page[at.byte] = static_cast<std::uint8_t>(code);
    }
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < kBytes / 16; i += kThreads)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<uint4*>(page)[i];
}

template <int D>
int run(const SealArgs& a, CudaStream stream) {
  const dim3 grid(a.pairs_max, a.kv_heads);
  switch (a.format) {
    case CudaKvFormat::fp8:
      return launch(seal_kernel<D, CudaKvFormat::fp8>, grid, kThreads, 0, stream, a);
    case CudaKvFormat::int8:
      return launch(seal_kernel<D, CudaKvFormat::int8>, grid, kThreads, 0, stream, a);
    case CudaKvFormat::int4:
      return launch(seal_kernel<D, CudaKvFormat::int4>, grid, kThreads, 0, stream, a);
    case CudaKvFormat::int2:
      return launch(seal_kernel<D, CudaKvFormat::int2>, grid, kThreads, 0, stream, a);
    case CudaKvFormat::bf16:
      break;
  }
  return cudaErrorInvalidValue;
}

}  // namespace

int seal(const SealArgs& a, CudaStream stream) {
  switch (a.head_dim) {
    case 64:
      return run<64>(a, stream);
    case 128:
      return run<128>(a, stream);
    case 256:
      return run<256>(a, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace quire::cuda
