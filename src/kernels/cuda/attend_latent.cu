// Multi-head latent attention, absorbed: all heads read one row of 576 numbers per token, the latent
// (512) and the rotated part of the key (64), and the latent is the value too.
//
// A block of threads per (split, 16 heads): one warp loads pages, four warps compute. Each of the four
// scores 8 slots of a page for all heads, in four chains over the dimensions that are added at the end.
// The warps then exchange their largest scores and their weights, and each adds 128 dimensions of the
// values. Weights are relative to a reference, as in attend_page.cuh. Every split leaves a partial for
// attend_merge, even if there is only one.
#include "kernels/cuda/attend_page.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = 4, kThreads = (kWarps + 1) * 32, kStages = 2, kHeads = kLatentHeads;
constexpr int kBlocks = kLatentKeys / 64, kMine = kLatentValues / kWarps;  // dimensions of a warp
constexpr std::uint32_t kPageBytes = kCudaPage * kLatentKeys * 2, kBlock = Page<64>::kBlock;
constexpr std::uint32_t kQueryBlock = kHeads * 128, kQueryBytes = kBlocks * kQueryBlock;
constexpr std::size_t kBytes = kStages * kPageBytes + kQueryBytes;

struct WarpResults {
  float most[kWarps][kHeads], sum[kWarps][kHeads];
  uint2 weights[kWarps][32];
};

__device__ __forceinline__ void meet() { asm volatile("bar.sync 1, 128;" ::: "memory"); }

__global__ void __launch_bounds__(kThreads, 2) latent(const AttendArgs a) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[2 * kStages];
  __shared__ WarpResults results;
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t ring = shared_address(shared), query = ring + kStages * kPageBytes;
  const std::uint32_t bars = shared_address(barriers);
  allow_next();
  if (threadIdx.x == 0) init_ring(bars, kStages, kWarps);
  __syncthreads();
  wait_for_previous();
  if (blockIdx.y >= *a.item_count) return;
  const AttendItem item = a.items[blockIdx.y];
  const std::uint32_t first = item.begin / kCudaPage,
                      pages = (item.end + kCudaPage - 1) / kCudaPage - first;
  if (warp == kWarps) {
    if (!copies(lane)) return;
    for (std::uint32_t p = 0; p < pages; ++p) {
      const std::uint32_t full = bars + 8 * (p % kStages);
      if (p >= kStages) barrier_wait(full + 8 * kStages, (p / kStages - 1) & 1);
      begin_copies(full, kPageBytes);
      warp_copy(ring + p % kStages * kPageBytes,
                a.arena + std::size_t{a.tables[item.table + first + p]} * 256 + a.layer_offset,
                kPageBytes, full, lane);
      end_copies(full);
    }
    return;
  }

  // Queries of 16 heads, in blocks of 64 dimensions whose pieces are permuted like a page's.
  const uint4* from = reinterpret_cast<const uint4*>(
      static_cast<const bf16*>(a.queries) +
      (std::size_t{item.row} * a.query_heads + blockIdx.x * kHeads) * kLatentKeys);
  for (std::uint32_t i = threadIdx.x; i < kHeads * kLatentKeys / 8; i += kWarps * 32) {
    const std::uint32_t head = i / (kLatentKeys / 8), piece = i % (kLatentKeys / 8);
    const uint4 v = from[i];
    const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
    store_shared(query + piece / 8 * kQueryBlock + head * 128 + ((piece % 8 ^ (head & 7)) << 4),
                 words);
  }
  meet();

  const std::uint32_t end = item.position + 1;
  float out[kMine / 8][4], max[2] = {kLowest, kLowest}, sum[2] = {0, 0};
#pragma unroll
  for (int n = 0; n < kMine / 8; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
  for (std::uint32_t p = 0; p < pages; ++p) {
    const std::uint32_t slot = (first + p) * kCudaPage, page = ring + p % kStages * kPageBytes;
    barrier_wait(bars + 8 * (p % kStages), p / kStages & 1);
    float s[4][4] = {};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      std::uint32_t keys[2][4], q[4][4];  // 8 slots of 64 dimensions
#pragma unroll
      for (int i = 0; i < 2; ++i)
        load_matrices(keys[i], page + block * kBlock +
                                   Page<64>::at(warp * 8 + (lane & 7), i * 4 + (lane >> 3)));
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const std::uint32_t head = lane & 15;
        load_matrices(q[k], query + block * kQueryBlock + head * 128 +
                                ((k * 2 + (lane >> 4) ^ (head & 7)) << 4));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k)
        mma_bf16(s[k], q[k], keys[k / 2][k % 2 * 2], keys[k / 2][k % 2 * 2 + 1]);
    }
    float most[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[0][2 * j + i];
        x = (x + s[1][2 * j + i]) + (s[2][2 * j + i] + s[3][2 * j + i]);
        const std::uint32_t at = slot + warp * 8 + 2 * t + i;
        if (at < item.begin || at >= end) x = kLowest;
      }
      most[j] = fmaxf(s[0][2 * j], s[0][2 * j + 1]);
      most[j] = fmaxf(most[j], __shfl_xor_sync(~0u, most[j], 1));
      most[j] = fmaxf(most[j], __shfl_xor_sync(~0u, most[j], 2));
      if (t == 0) results.most[warp][g + 8 * j] = most[j];
    }
    meet();
    float decay[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float all = fmaxf(fmaxf(results.most[0][g + 8 * j], results.most[1][g + 8 * j]),
                              fmaxf(results.most[2][g + 8 * j], results.most[3][g + 8 * j]));
      const float before = max[j], now = all > before + kSlack ? all : before;
      const float base = now == kLowest ? 0 : now;
      decay[j] = now != before && before != kLowest ? exp2_approx(before - base) : 1;
      max[j] = now;
      float here = 0;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        s[0][2 * j + i] = exp2_approx(s[0][2 * j + i] - base);
        here += s[0][2 * j + i];
      }
      sum[j] = __fmaf_rn(sum[j], decay[j], here);
    }
    results.weights[warp][lane] =
        make_uint2(pack_bf16(s[0][0], s[0][1]), pack_bf16(s[0][2], s[0][3]));
    if (__any_sync(~0u, decay[0] != 1 || decay[1] != 1)) {
#pragma unroll
      for (int n = 0; n < kMine / 8; ++n)
#pragma unroll
        for (int j = 0; j < 4; ++j) out[n][j] *= decay[j / 2];
    }
    meet();
    std::uint32_t weights[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint2 low = results.weights[2 * h][lane], high = results.weights[2 * h + 1][lane];
      weights[h][0] = low.x, weights[h][1] = low.y, weights[h][2] = high.x, weights[h][3] = high.y;
    }
    const std::uint32_t written = min(end - slot, kCudaPage);  // beyond: anything, NaN included
#pragma unroll
    for (int block = 0; block < kMine / 64; ++block)
#pragma unroll
      for (int n = 0; n < 8; n += 2)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          std::uint32_t r[4];
          load_matrices_transposed(r, page + (warp * (kMine / 64) + block) * kBlock +
                                          Page<64>::at(h * 16 + (lane & 15), n + (lane >> 4)));
          if (written < kCudaPage)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const std::uint32_t at = h * 16 + i % 2 * 8 + 2 * t;
              r[i] &= (at < written ? 0xffffu : 0) | (at + 1 < written ? 0xffff0000u : 0);
            }
          mma_bf16(out[block * 8 + n], weights[h], r[0], r[1]);
          mma_bf16(out[block * 8 + n + 1], weights[h], r[2], r[3]);
        }
    __syncwarp();
    if (lane == 0) barrier_arrive(bars + 8 * (kStages + p % kStages));
  }

#pragma unroll
  for (int j = 0; j < 2; ++j) {
    sum[j] += __shfl_xor_sync(~0u, sum[j], 1);
    sum[j] += __shfl_xor_sync(~0u, sum[j], 2);
    if (t == 0) results.sum[warp][g + 8 * j] = sum[j];
  }
  meet();
  float* to = a.partials + (std::size_t{item.partial} * a.kv_heads + blockIdx.x) *
                               partial_floats(kHeads, kLatentValues);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const std::uint32_t head = g + 8 * j;
    if (warp == 0 && t == 0) {
      to[head] = max[j];
      to[kHeads + head] = (results.sum[0][head] + results.sum[1][head]) +
                          (results.sum[2][head] + results.sum[3][head]);
    }
#pragma unroll
    for (int n = 0; n < kMine / 8; ++n)
      *reinterpret_cast<float2*>(to + 2 * kHeads + head * kLatentValues + warp * kMine + n * 8 +
                                 2 * t) = make_float2(out[n][2 * j], out[n][2 * j + 1]);
  }
}

}  // namespace

int attend_latent(const AttendArgs& a, CudaStream stream) {
  if (a.query_heads != a.kv_heads * kHeads || a.head_dim != kLatentValues || a.window != 0)
    return cudaErrorInvalidValue;
  static const int allowed = allow_shared(latent, kBytes);
  if (allowed != 0) return allowed;
  return launch(latent, dim3(a.kv_heads, a.items_max), kThreads, kBytes, stream, a);
}

}  // namespace quire::cuda
