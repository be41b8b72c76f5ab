// The operations between the matrix products of a layer. The order of their sums depends on the width
// alone.
#include "kernels/cuda/attend_page.cuh"
#include "kernels/cuda/coded.cuh"
#include "kernels/cuda/gate.cuh"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/random.cuh"

namespace quire::cuda {
namespace {

constexpr int kNormThreads = 512;

__device__ float block_sum(float x) {
  __shared__ float parts[kNormThreads / 32];
  for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  __syncthreads();  // the last call's parts have been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
  __syncthreads();
  x = parts[threadIdx.x % (kNormThreads / 32)];
  for (int apart = kNormThreads / 64; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
  return x;
}

// kNormFours: of a thread. Few, so that many rows are on their way at a time.
template <int kNormFours>
__global__ void __launch_bounds__(kNormThreads, kNormFours <= 2 ? 2 : 1)
    add_norm_kernel(const AddNormArgs a) {
  allow_next();
  const std::uint32_t row = blockIdx.x, fours = a.width / 4;
  float4 weight[kNormFours], post[kNormFours];
#pragma unroll
  for (int i = 0; i < kNormFours; ++i) {
    const std::uint32_t p = i * kNormThreads + threadIdx.x;
    if (p >= fours) continue;
    weight[i] = reinterpret_cast<const float4*>(a.weight)[p];
    if (a.post_norm) post[i] = reinterpret_cast<const float4*>(a.post_norm)[p];
  }
  wait_for_previous();
  float4* x = reinterpret_cast<float4*>(a.x) + std::size_t{row} * fours;
  const uint2* y = static_cast<const uint2*>(a.y) + std::size_t{row} * fours;
  float4 v[kNormFours], z[kNormFours];
  const auto add_squares = [](const float4& of, float squares) {
    squares = __fmaf_rn(of.x, of.x, squares);
    squares = __fmaf_rn(of.y, of.y, squares);
    squares = __fmaf_rn(of.z, of.z, squares);
    return __fmaf_rn(of.w, of.w, squares);
  };
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kNormFours; ++i) {
    const std::uint32_t p = i * kNormThreads + threadIdx.x;
    v[i] = z[i] = make_float4(0, 0, 0, 0);
    if (p >= fours) continue;
    v[i] = x[p];
    if (a.y) {
      const uint2 four = y[p];
      z[i] = make_float4(low_bf16(four.x), high_bf16(four.x), low_bf16(four.y), high_bf16(four.y));
    }
    squares = add_squares(z[i], squares);
  }
  if (a.post_norm) {
    const float scale = __frsqrt_rn(block_sum(squares) / a.width + a.epsilon);
#pragma unroll
    for (int i = 0; i < kNormFours; ++i)
      z[i] = make_float4(z[i].x * scale * post[i].x, z[i].y * scale * post[i].y,
                         z[i].z * scale * post[i].z, z[i].w * scale * post[i].w);
  }
  squares = 0;
#pragma unroll
  for (int i = 0; i < kNormFours; ++i) {
    const std::uint32_t p = i * kNormThreads + threadIdx.x;
    if (p >= fours) continue;
    v[i].x += z[i].x, v[i].y += z[i].y, v[i].z += z[i].z, v[i].w += z[i].w;
    if (a.y) x[p] = v[i];
    squares = add_squares(v[i], squares);
  }
  const float scale = __frsqrt_rn(block_sum(squares) / a.width + a.epsilon);
#pragma unroll
  for (int i = 0; i < kNormFours; ++i) {
    const std::uint32_t p = i * kNormThreads + threadIdx.x;
    if (p >= fours) continue;
    const uint2 four =
        make_uint2(pack_bf16(v[i].x * scale * weight[i].x, v[i].y * scale * weight[i].y),
                   pack_bf16(v[i].z * scale * weight[i].z, v[i].w * scale * weight[i].w));
    bf16* to = static_cast<bf16*>(a.output);
    if (a.rows > kPackedRowsMax) {
      *reinterpret_cast<uint2*>(to + std::size_t{row} * a.width + 4 * p) = four;
    } else {
      *reinterpret_cast<std::uint32_t*>(to + activation_at(a.rows, a.width, row, 4 * p)) = four.x;
      *reinterpret_cast<std::uint32_t*>(to + activation_at(a.rows, a.width, row, 4 * p + 2)) =
          four.y;
    }
  }
}

// kBits: of codes; 16 is a table of bf16.
template <int kBits, CodeForm kForm>
__global__ void embed_kernel(const EmbedArgs a) {
  allow_next();
  wait_for_previous();
  const std::uint32_t row = blockIdx.x;
  std::uint32_t token = a.tokens[row];
  if (token & kBestOfRow) token = a.best[token & ~kBestOfRow].token;
  if (token == kNoToken) token = 0;  // of a row that is not finite, and will be dropped
  float2* to = reinterpret_cast<float2*>(a.x) + std::size_t{row} * a.width / 2;
  for (std::uint32_t i = threadIdx.x; i < a.width / 2; i += blockDim.x) {
    std::uint32_t two;
    if constexpr (kBits == 16)
      two = static_cast<const std::uint32_t*>(a.table)[std::size_t{token} * a.width / 2 + i];
    else
      two = coded_two<kBits, kForm>(a.codes.data, a.width, token, 2 * i,
                                    coded_pair<kBits, kForm>(a.codes.data, a.width, token, 2 * i));
    to[i] = make_float2(low_bf16(two) * a.scale, high_bf16(two) * a.scale);
  }
}

// Some bf16 numbers next to each other, read and written at once.
template <int kCount>
struct alignas(kCount * 2) Together {
  bf16 x[kCount];
};

// A warp per head: lane l has kEach elements from kEach * l on, and their partners half a head away.
template <int D>
__global__ void rope_store_kernel(const RopeStoreArgs a) {
  constexpr int kEach = D / 64;
  allow_next();
  const std::uint32_t lane = threadIdx.x % 32, row = blockIdx.x;
  const std::uint32_t head = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
  const std::uint32_t heads = a.query_heads + 2 * a.kv_heads;
  wait_for_previous();
  if (head >= heads) return;
  const bf16* from = static_cast<const bf16*>(a.qkv) + (std::size_t{row} * heads + head) * D;
  float x[2][kEach];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::uint32_t d = h * (D / 2) + lane * kEach;
    const Together<kEach> some = *reinterpret_cast<const Together<kEach>*>(from + d);
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      x[h][j] = __bfloat162float(some.x[j]);
      if (a.bias) x[h][j] += a.bias[head * D + d + j];
    }
  }
  const bool is_query = head < a.query_heads, is_value = head >= a.query_heads + a.kv_heads;
  const std::uint32_t position = a.positions[row];
  if (!is_value) {
    if (const float* norm = is_query ? a.q_norm : a.k_norm) {
      float squares = 0;
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < kEach; ++j) squares = __fmaf_rn(x[h][j], x[h][j], squares);
      for (int apart = 16; apart > 0; apart /= 2) squares += __shfl_xor_sync(~0u, squares, apart);
      const float scale = __frsqrt_rn(squares / a.norm_dim + a.epsilon);
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          x[h][j] = x[h][j] * scale * norm[h * (D / 2) + lane * kEach + j];
    }
    const float* angles = a.angles + std::size_t{position} * D;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const float c = angles[lane * kEach + j], s = angles[D / 2 + lane * kEach + j];
      const float even = x[0][j], odd = x[1][j];
      x[0][j] = __fmaf_rn(even, c, -(odd * s));
      x[1][j] = __fmaf_rn(odd, c, even * s);
    }
  }
  if (a.rotate) rotate_halves(x, lane);
  if (is_query) {
    bf16* to = static_cast<bf16*>(a.queries) + (std::size_t{row} * a.query_heads + head) * D;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      Together<kEach> some;
#pragma unroll
      for (int j = 0; j < kEach; ++j) some.x[j] = __float2bfloat16_rn(x[h][j] * a.query_scale);
      *reinterpret_cast<Together<kEach>*>(to + h * (D / 2) + lane * kEach) = some;
    }
    return;
  }
  const std::uint32_t place = a.places[row];
  if (place == 0xffffffffu) return;
  const std::uint32_t kv_head = (head - a.query_heads) % a.kv_heads, slot = position % kCudaPage;
  std::byte* page = a.arena + std::size_t{place} * 256 + a.layer_offset + kv_head * a.page_bytes +
                    (is_value ? Page<D>::kHalf : 0);
  bool finite = true;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const std::uint32_t d = h * (D / 2) + lane * kEach;
    Together<kEach> some;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      some.x[j] = __float2bfloat16_rn(x[h][j]);
      finite = finite && fabsf(x[h][j]) <= 0x1.fep127f;  // no NaN is
    }
    *reinterpret_cast<Together<kEach>*>(page + Page<D>::at(slot, d / 8) + d % 8 * 2) = some;
  }
  if (a.broken && !finite) a.broken[row] = 1;
}

__global__ void gate_kernel(const GateArgs a) {
  allow_next();
  wait_for_previous();
  const std::uint32_t unit = (blockIdx.y * blockDim.x + threadIdx.x) * 8, row = blockIdx.x;
  if (unit >= a.width) return;
  const uint4* from = reinterpret_cast<const uint4*>(static_cast<const bf16*>(a.gate_up) +
                                                     (std::size_t{row} * a.width + unit) * 2);
  const uint4 g = from[0], u = from[1];
  const std::uint32_t gates[4] = {g.x, g.y, g.z, g.w}, ups[4] = {u.x, u.y, u.z, u.w};
  std::uint32_t out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair =
        __halves2bfloat162(gated(low_bf16(gates[i]), low_bf16(ups[i]), a.gelu),
                           gated(high_bf16(gates[i]), high_bf16(ups[i]), a.gelu));
    out[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  *reinterpret_cast<uint4*>(static_cast<bf16*>(a.output) + std::size_t{row} * a.width + unit) =
      make_uint4(out[0], out[1], out[2], out[3]);
}

__global__ void gather_kernel(const GatherArgs a) {
  allow_next();
  wait_for_previous();
  const std::uint32_t row = blockIdx.x, from = a.select[row];
  for (std::uint32_t i = threadIdx.x; i < a.hidden; i += blockDim.x)
    a.x_out[std::size_t{row} * a.hidden + i] = a.x[std::size_t{from} * a.hidden + i];
  for (std::uint32_t i = threadIdx.x; i < a.width; i += blockDim.x)
    static_cast<bf16*>(a.attended_out)[activation_at(a.rows, a.width, row, i)] =
        static_cast<const bf16*>(a.attended)[activation_at(a.from_rows, a.width, from, i)];
}

// Sums of four uniform numbers: near enough to Gaussian for weights nobody trained.
__global__ void random_kernel(const RandomArgs a) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < a.count;
       i += stride) {
    const std::uint64_t bits = mix(a.seed ^ mix(i));
    const float sum = static_cast<float>(bits & 0xffff) + static_cast<float>(bits >> 16 & 0xffff) +
                      static_cast<float>(bits >> 32 & 0xffff) + static_cast<float>(bits >> 48);
    const std::uint64_t at = a.run == 0 ? i : i / a.run * a.stride + i % a.run;
    static_cast<bf16*>(a.to)[at] =
        __float2bfloat16_rn((sum * (1.0f / 65536) - 2.0f) * 1.7320508f * a.spread);
  }
}

__global__ void read_kernel(const uint4* from, std::uint64_t count, uint4* never) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * blockDim.x;
  uint4 all = make_uint4(0, 0, 0, 0);
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < count;
       i += 4 * stride) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = i + j * stride < count ? from[i + j * stride] : all;
#pragma unroll
    for (int j = 0; j < 4; ++j) all.x ^= v[j].x, all.y ^= v[j].y, all.z ^= v[j].z, all.w ^= v[j].w;
  }
  if (all.x == 0x12345 && all.y == 0x54321 && all.z == 77) *never = all;
}

}  // namespace

int add_norm(const AddNormArgs& a, CudaStream stream) {
  const std::uint32_t each = (a.width / 4 + kNormThreads - 1) / kNormThreads;
  if (a.width % 4 != 0 || each > 4) return cudaErrorInvalidValue;
  const auto kernel = each == 1   ? add_norm_kernel<1>
                      : each == 2 ? add_norm_kernel<2>
                                  : add_norm_kernel<4>;
  return launch(kernel, a.rows, kNormThreads, 0, stream, a);
}

int embed(const EmbedArgs& a, CudaStream stream) {
  if (!a.codes.data) return launch(embed_kernel<16, CodeForm::affine>, a.rows, 256, 0, stream, a);
  return by_coding(a.codes, [&](auto bits, auto form) {
    return launch(embed_kernel<bits, form>, a.rows, 256, 0, stream, a);
  });
}

int rope_store(const RopeStoreArgs& a, CudaStream stream) {
  const dim3 grid(a.rows, (a.query_heads + 2 * a.kv_heads + 7) / 8);
  switch (a.head_dim) {
    case 64:
      return launch(rope_store_kernel<64>, grid, 256, 0, stream, a);
    case 128:
      return launch(rope_store_kernel<128>, grid, 256, 0, stream, a);
    case 256:
      return launch(rope_store_kernel<256>, grid, 256, 0, stream, a);
  }
  return cudaErrorInvalidValue;
}

int gate(const GateArgs& a, CudaStream stream) {
  if (a.width % 8 != 0) return cudaErrorInvalidValue;
  return launch(gate_kernel, dim3(a.rows, (a.width / 8 + 255) / 256), 256, 0, stream, a);
}

int gather(const GatherArgs& a, CudaStream stream) {
  return launch(gather_kernel, a.rows, 256, 0, stream, a);
}

int random_bf16(const RandomArgs& a, CudaStream stream) {
  random_kernel<<<multiprocessors() * 8, 256, 0, native(stream)>>>(a);
  return cudaGetLastError();
}

int read_all(const void* from, std::uint64_t bytes, CudaStream stream) {
  read_kernel<<<multiprocessors() * 8, 512, 0, native(stream)>>>(
      static_cast<const uint4*>(from), bytes / 16, static_cast<uint4*>(const_cast<void*>(from)));
  return cudaGetLastError();
}

}  // namespace quire::cuda
