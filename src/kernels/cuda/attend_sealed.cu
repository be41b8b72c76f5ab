// Decode attention over compressed pages, and the kernel that seals them.
//
// A sealed page of 32 slots holds codes of keys, codes of values, then a scale per slot for each
// (f32). Codes lie as the tensor cores want them, so that a lane reads its operands with wide loads
// and unpacks two values at a time to f16; scales never touch an element: a key's multiplies its
// score, a value's multiplies its weight.
//   keys    [slot][D]: lane t of a group of four has 16 bytes of it at a time (one row of int4
//   codes
//           of D = 128, a quarter of 64 codes of 8 bits). k is permuted alike in query and keys.
//   values  [D][slot]: within a row, lane t's slots {2t, 2t+1, 2t+8, 2t+9} of both halves together.
#include <cuda_fp8.h>

#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/sealed.h"

namespace quire::cuda {
namespace {

// Two codes as f16.
template <CudaKvFormat kFormat>
__device__ __forceinline__ std::uint32_t unpack_bytes(std::uint32_t word, int pair) {
  std::uint32_t r;
  if constexpr (kFormat == CudaKvFormat::fp8) {
    const std::uint16_t two = static_cast<std::uint16_t>(word >> (16 * pair));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(two));
  } else {  // int8, stored plus 128: 0x64xx is 1024 + xx in f16
    r = __byte_perm(word, 0x64646464u, pair == 0 ? 0x4140 : 0x4342);
    asm("sub.f16x2 %0, %0, %1;" : "+r"(r) : "r"(0x64806480u));
  }
  return r;
}
// Nibbles `pair` and `pair` + 4, stored plus 8.
__device__ __forceinline__ std::uint32_t unpack_nibbles(std::uint32_t word, int pair) {
  std::uint32_t r = ((word >> (4 * pair)) & 0x000f000fu) | 0x64006400u;
  asm("sub.f16x2 %0, %0, %1;" : "+r"(r) : "r"(0x64086408u));
  return r;
}

template <int D, CudaKvFormat kFormat>
struct Sealed {
  static constexpr bool kNibbles = kFormat == CudaKvFormat::int4;
  static constexpr int kCodes = kNibbles ? kCudaPage * D / 2 : kCudaPage * D;  // of keys, or values
  static constexpr int kBytes = 2 * kCodes + 2 * kCudaPage * 4;

  // Dimension of the first of four that lane t multiplies in step k; two of them are a pair.
  __device__ static constexpr int dimension(int k, int t) {
    if (kNibbles) return t * (D / 4) + k * 4;
    return k / 4 * 64 + t * 16 + k % 4 * 4;
  }

  __device__ static __forceinline__ void scores(const std::uint32_t (&q)[D / 16][2],
                                                std::uint32_t page, std::uint32_t lane,
                                                float (&s)[4][4]) {
    const std::uint32_t g = lane / 4, t = lane % 4;
#pragma unroll
    for (int n = 0; n < 4; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
    // Four words of codes of each of four groups of slots at a time: four chains side by side.
    constexpr int kWordSteps = kNibbles ? 2 : 1, kWords = D / 16 / kWordSteps;
    constexpr int kPart = kWords < 4 ? kWords : 4;
#pragma unroll
    for (int part = 0; part < kWords / kPart; ++part) {
      std::uint32_t words[4][kPart];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const std::uint32_t slot = n * 8 + g;
        if constexpr (kPart == 2) {  // int4, heads of 64
          const uint2 v = load_shared2(page + slot * (D / 2) + t * 8);
          words[n][0] = v.x, words[n][1] = v.y;
        } else {
          const uint4 v = load_shared(
              kNibbles ? page + slot * (D / 2) + t * 16
                       : page + slot * D + ((part ^ (slot & (D / 64 - 1))) * 64) + t * 16);
          words[n][0] = v.x, words[n][1] = v.y, words[n][2] = v.z, words[n][3] = v.w;
        }
      }
#pragma unroll
      for (int k = 0; k < kPart * kWordSteps; ++k) {
        const int step = part * kPart * kWordSteps + k;
        const std::uint32_t a[4] = {q[step][0], 0, q[step][1], 0};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if constexpr (kNibbles)
            mma_f16(s[n], a, unpack_nibbles(words[n][k / 2], k % 2 * 2),
                    unpack_nibbles(words[n][k / 2], k % 2 * 2 + 1));
          else
            mma_f16(s[n], a, unpack_bytes<kFormat>(words[n][k], 0),
                    unpack_bytes<kFormat>(words[n][k], 1));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 scale = load_shared_floats(page + 2 * kCodes + (n * 8 + 2 * t) * 4);
      s[n][0] *= scale.x;
      s[n][1] *= scale.y;
    }
  }

  // Weights times the values' scales, as f16.
  __device__ static __forceinline__ void weigh(const float (&s)[4][4], std::uint32_t page,
                                               std::uint32_t lane, std::uint32_t (&w)[2][4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 scale =
          load_shared_floats(page + 2 * kCodes + kCudaPage * 4 + (n * 8 + 2 * (lane & 3)) * 4);
      w[n / 2][n % 2 * 2] = pack_f16(s[n][0] * scale.x, s[n][1] * scale.y);
      w[n / 2][n % 2 * 2 + 1] = 0;
    }
  }

  __device__ static __forceinline__ void add_values(const std::uint32_t (&w)[2][4],
                                                    std::uint32_t page, std::uint32_t lane,
                                                    float decay, Softmax<D, 8>& state) {
    const std::uint32_t g = lane / 4, t = lane % 4;
    constexpr int kAtOnce = 4;
#pragma unroll
    for (int n = 0; n < D / 8; n += kAtOnce) {
      float c[kAtOnce][4];
      uint2 words[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::uint32_t dim = (n + i) * 8 + g;
        if constexpr (kNibbles)
          words[i].x = load_shared1(page + kCodes + dim * 16 + t * 4);
        else
          words[i] = load_shared2(page + kCodes + dim * 32 + t * 8);
        c[i][0] = state.out[n + i][0] * decay, c[i][1] = state.out[n + i][1] * decay;
        c[i][2] = c[i][3] = 0;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if constexpr (kNibbles) {
            mma_f16(c[i], w[h], unpack_nibbles(words[i].x, 2 * h),
                    unpack_nibbles(words[i].x, 2 * h + 1));
          } else {
            const std::uint32_t word = h == 0 ? words[i].x : words[i].y;
            mma_f16(c[i], w[h], unpack_bytes<kFormat>(word, 0), unpack_bytes<kFormat>(word, 1));
          }
        }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        state.out[n + i][0] = c[i][0], state.out[n + i][1] = c[i][1];
    }
  }
};

template <int D, CudaKvFormat kFormat, int kWarps, int kStages>
__global__ void __launch_bounds__(kWarps * 32, 1) decode_sealed(const AttendArgs a) {
  using P = Sealed<D, kFormat>;
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[kWarps * kStages];
  constexpr std::uint32_t kSplit = cuda_split(D);
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t heads = a.query_heads / a.kv_heads;
  const std::uint32_t ring = shared_address(shared + warp * kStages * P::kBytes);
  const std::uint32_t bars = shared_address(barriers + warp * kStages);
  allow_next();
  if (lane == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(bars + 8 * i, 1);
    barrier_init_fence();
  }
  __syncwarp();
  const std::uint32_t count = *a.item_count * a.kv_heads, stride = gridDim.x * kWarps;
  Work ahead, next;
  ahead.load(a, warp * gridDim.x + blockIdx.x, count, lane);
  next.load(a, ahead.index + stride, count, lane);
  std::uint32_t asked = 0, page = 0;
  const auto ask = [&] {
    if (page == ahead.pages) return;
    const std::uint32_t offset = __shfl_sync(~0u, ahead.entry, page % 32), stage = asked % kStages;
    if (lane == 0) {
      barrier_expect(bars + 8 * stage, P::kBytes);
      bulk_copy(ring + stage * P::kBytes,
                a.arena + std::size_t{offset} * 256 + a.layer_offset + ahead.head * a.page_bytes,
                P::kBytes, bars + 8 * stage);
    }
    ++asked;
    if (++page == ahead.pages) {
      page = 0;
      ahead = next;
      next.load(a, ahead.index + stride, count, lane);
    } else if (page % 32 == 0) {
      ahead.entry = ahead.later;
      ahead.read_on(a, page + 32 + lane);
    }
  };
  Work now = ahead;
  wait_for_previous();
  for (int i = 0; i < kStages; ++i) ask();
  std::uint32_t used = 0;
  while (now.pages != 0) {
    const AttendItem item = now.item;
    Work upcoming;
    upcoming.find(a, now.index + stride, count);
    std::uint32_t q[D / 16][2];
    const bf16* query = static_cast<const bf16*>(a.queries) +
                        (std::size_t{item.row} * a.query_heads + now.head * heads + g) * D;
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const std::uint32_t two =
            g < heads ? *reinterpret_cast<const std::uint32_t*>(query + P::dimension(k, t) + 2 * i)
                      : 0;
        q[k][i] = pack_f16(low_bf16(two), high_bf16(two));
      }
    const std::uint32_t end = item.position + 1;
    const Visible rows[1] = {{a.window != 0 ? end - min(end, a.window) : 0, end}};
    Softmax<D, 8> state;
    float out[D / 8][2], max = kLowest, sum = 0;
    state.clear();
    const auto end_split = [&](bool first) {
      state.finish();
      float mine, its;
      merge_factors(max, sum, state.max[0], state.sum[0], mine, its);
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          out[n][j] = __fmaf_rn(state.out[n][j], its, (first ? 0.0f : out[n][j]) * mine);
      state.clear();
    };
    for (std::uint32_t p = 0; p < now.pages; ++p) {
      const std::uint32_t slot = (now.first_page() + p) * kCudaPage;
      if (p != 0 && slot % kSplit == 0) end_split(slot / kSplit == item.begin / kSplit + 1);
      const std::uint32_t stage = used % kStages, at = ring + stage * P::kBytes;
      barrier_wait(bars + 8 * stage, (used / kStages) & 1);
      ++used;
      float s[4][4], decay[1];
      std::uint32_t weights[2][4];
      P::scores(q, at, lane, s);
      weigh_page<D, 8>(s, rows, slot, lane, state, decay, weights);
      P::weigh(s, at, lane, weights);
      P::add_values(weights, at, lane, decay[0], state);
      __syncwarp();
      ask();
    }
    store_row<D>(a, now, lane, state, out, max, sum, end_split);
    now = upcoming;
  }
}

template <int D, CudaKvFormat kFormat, int kWarps, int kStages>
int run(const AttendArgs& a, CudaStream stream) {
  constexpr std::size_t kBytes = std::size_t{kWarps} * kStages * Sealed<D, kFormat>::kBytes;
  static const int allowed = allow_shared(decode_sealed<D, kFormat, kWarps, kStages>, kBytes);
  if (allowed != 0) return allowed;
  return launch(decode_sealed<D, kFormat, kWarps, kStages>, multiprocessors(), kWarps * 32, kBytes,
                stream, a);
}

// A block per page; a thread per slot and side finds the scale, then all encode.
template <CudaKvFormat kFormat>
__global__ void seal_kernel(const SealArgs a) {
  const std::uint32_t dim = a.head_dim;
  const std::byte* from = a.from + blockIdx.x * a.from_stride;
  std::byte* to = a.to + blockIdx.x * a.to_stride;
  __shared__ float scales[2 * kCudaPage];
  const auto value = [&](std::uint32_t side, std::uint32_t slot, std::uint32_t d) {
    return __bfloat162float(
        *reinterpret_cast<const bf16*>(from + side * kCudaPage * dim * 2 + page_at(dim, slot, d)));
  };
  if (threadIdx.x < 2 * kCudaPage) {
    const std::uint32_t side = threadIdx.x / kCudaPage, slot = threadIdx.x % kCudaPage;
    float most = 0;
    for (std::uint32_t d = 0; d < dim; ++d) most = fmaxf(most, fabsf(value(side, slot, d)));
    const float scale = most / sealed_code_max(kFormat);
    scales[threadIdx.x] = scale;
    *reinterpret_cast<float*>(to + sealed_scale_at(kFormat, dim, side, slot)) = scale;
  }
  __syncthreads();
  for (std::uint32_t i = threadIdx.x; i < 2 * kCudaPage * dim; i += blockDim.x) {
    const std::uint32_t side = i / (kCudaPage * dim), slot = i / dim % kCudaPage, d = i % dim;
    const float scale = scales[side * kCudaPage + slot];
    const float x = scale > 0 ? __fdiv_rn(value(side, slot, d), scale) : 0;
    const SealedPlace place = sealed_code_at(kFormat, dim, side, slot, d);
    if constexpr (kFormat == CudaKvFormat::fp8) {
      reinterpret_cast<std::uint8_t*>(to)[place.byte] =
          __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    } else if constexpr (kFormat == CudaKvFormat::int8) {
      reinterpret_cast<std::uint8_t*>(to)[place.byte] =
          static_cast<std::uint8_t>(__float2int_rn(x) + 128);
    } else {  // two threads share a byte: pages are zeroed first
      atomicOr(reinterpret_cast<unsigned*>(to) + place.byte / 4,
               static_cast<unsigned>(__float2int_rn(x) + 8) << (place.byte % 4 * 8 + place.shift));
    }
  }
}

}  // namespace

int attend_decode_sealed(const AttendArgs& a, CudaStream stream) {
  if (a.query_heads / a.kv_heads > 8) return cudaErrorInvalidValue;
  if (a.head_dim == 128) {
    switch (a.format) {
      case CudaKvFormat::fp8:
        return run<128, CudaKvFormat::fp8, 8, 2>(a, stream);
      case CudaKvFormat::int8:
        return run<128, CudaKvFormat::int8, 8, 2>(a, stream);
      case CudaKvFormat::int4:
        return run<128, CudaKvFormat::int4, 8, 4>(a, stream);
      default:
        break;
    }
  }
  if (a.head_dim == 64) {
    switch (a.format) {
      case CudaKvFormat::fp8:
        return run<64, CudaKvFormat::fp8, 12, 3>(a, stream);
      case CudaKvFormat::int8:
        return run<64, CudaKvFormat::int8, 12, 3>(a, stream);
      case CudaKvFormat::int4:
        return run<64, CudaKvFormat::int4, 12, 4>(a, stream);
      default:
        break;
    }
  }
  return cudaErrorInvalidValue;
}

int seal(const SealArgs& a, CudaStream stream) {
  switch (a.format) {
    case CudaKvFormat::fp8:
      seal_kernel<CudaKvFormat::fp8><<<a.pages, 256, 0, native(stream)>>>(a);
      break;
    case CudaKvFormat::int8:
      seal_kernel<CudaKvFormat::int8><<<a.pages, 256, 0, native(stream)>>>(a);
      break;
    case CudaKvFormat::int4:
      for (std::uint32_t i = 0; i < a.pages; ++i)
        cudaMemsetAsync(a.to + i * a.to_stride, 0, sealed_page_bytes(a.format, a.head_dim),
                        native(stream));
      seal_kernel<CudaKvFormat::int4><<<a.pages, 256, 0, native(stream)>>>(a);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace quire::cuda
