// Many rows of one sequence: a block per (tile of rows, KV head).
//
// Twelve warps take 16 (row, head) pairs each and share every page of a ring that the first one
// keeps filled. Arithmetic is attend_page.cuh's, split by split, so each row gets the bits that
// decoding it alone would give. A tile walks all its splits and merges them as it goes, or, where
// tiles are few and contexts long, several blocks share a tile and leave partials for attend_merge.
#include "kernels/cuda/attend_page.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"

namespace quire::cuda {
namespace {

constexpr int kWarps = kCudaTile / 16, kStages = 6;

template <int D>
struct Layout {
  static constexpr std::size_t kMerged = std::size_t{kWarps} * 32 * (D / 8) * sizeof(float4);
  static constexpr std::size_t kBytes = kStages * Page<D>::kBytes + kMerged;
};

template <int D>
__global__ void __launch_bounds__(kWarps * 32, 1) prefill(const AttendArgs a) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[2 * kStages];  // full, then empty
  constexpr int kHalf = Page<D>::kHalf, kBytes = Page<D>::kBytes;
  constexpr std::uint32_t kSplit = cuda_split(D);
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t heads = a.query_heads / a.kv_heads, head = blockIdx.x;
  const std::uint32_t ring = shared_address(shared), bars = shared_address(barriers);
  allow_next();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(bars + 8 * i, 1);
      barrier_init(bars + 8 * (kStages + i), kWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous();
  if (blockIdx.y >= *a.item_count) return;
  const AttendItem item = a.items[blockIdx.y];
  const std::uint32_t first_page = item.begin / kCudaPage,
                      pages = (item.end + kCudaPage - 1) / kCudaPage - first_page;

  // Called by the first warp, page after page.
  const auto fetch = [&](std::uint32_t p) {
    const std::uint32_t stage = p % kStages;
    if (p >= kStages) barrier_wait(bars + 8 * (kStages + stage), (p / kStages - 1) & 1);
    if (lane != 0) return;
    const std::uint32_t offset = a.tables[item.table + first_page + p];
    barrier_expect(bars + 8 * stage, kBytes);
    bulk_copy(ring + stage * kBytes,
              a.arena + std::size_t{offset} * 256 + a.layer_offset + head * a.page_bytes, kBytes,
              bars + 8 * stage);
  };
  if (warp == 0)
    for (std::uint32_t p = 0; p < min(pages, kStages - 1u); ++p) fetch(p);

  Visible rows[2];
  std::uint32_t tokens[2], member[2];  // within the tile; query head within the KV head
  bool real[2];
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const std::uint32_t pair = warp * 16 + g + 8 * j;
    tokens[j] = pair / heads, member[j] = pair % heads;
    real[j] = tokens[j] < item.row_count;
    const std::uint32_t end = item.position + tokens[j] + 1;
    rows[j] = real[j] ? Visible{a.window != 0 ? end - min(end, a.window) : 0, end} : Visible{0, 0};
  }
  const std::uint32_t warp_end = __reduce_max_sync(~0u, max(rows[0].end, rows[1].end));
  const std::uint32_t tile_end = item.position + item.row_count;
  std::uint32_t q[D / 16][4];
  const bf16* queries = static_cast<const bf16*>(a.queries);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const bf16* query =
        queries +
        (std::size_t{item.row + tokens[j]} * a.query_heads + head * heads + member[j]) * D;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      const bf16* at = query + k * 16 + 2 * t;
      q[k][j] = real[j] ? *reinterpret_cast<const std::uint32_t*>(at) : 0;
      q[k][j + 2] = real[j] ? *reinterpret_cast<const std::uint32_t*>(at + 8) : 0;
    }
  }

  float4* merged =
      reinterpret_cast<float4*>(shared + kStages * kBytes) + warp * 32 * (D / 8) + lane;
  float row_max[2] = {kLowest, kLowest}, row_sum[2] = {0, 0};
  Softmax<D, 16> state;
  state.clear();
  const bool whole = item.partial == kNoPartial;
  const auto end_split = [&](std::uint32_t split) {
    state.finish();
    if (whole) {
      float mine[2], its[2];
#pragma unroll
      for (int j = 0; j < 2; ++j)
        merge_factors(row_max[j], row_sum[j], state.max[j], state.sum[j], mine[j], its[j]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        float4 m = split == 0 ? make_float4(0, 0, 0, 0) : merged[n * 32];
        m.x = __fmaf_rn(state.out[n][0], its[0], m.x * mine[0]);
        m.y = __fmaf_rn(state.out[n][1], its[0], m.y * mine[0]);
        m.z = __fmaf_rn(state.out[n][2], its[1], m.z * mine[1]);
        m.w = __fmaf_rn(state.out[n][3], its[1], m.w * mine[1]);
        merged[n * 32] = m;
      }
    } else {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (!real[j]) continue;
        const std::size_t at = item.partial + std::size_t{tokens[j]} * item.partial_stride + split;
        float* out = a.partials + (at * a.kv_heads + head) * partial_floats(heads, D);
        if (t == 0) out[member[j]] = state.max[j], out[heads + member[j]] = state.sum[j];
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
          *reinterpret_cast<float2*>(out + 2 * heads + member[j] * D + n * 8 + 2 * t) =
              make_float2(state.out[n][2 * j], state.out[n][2 * j + 1]);
      }
    }
    state.clear();
  };
  const std::uint32_t first_split = item.begin / kSplit;
  for (std::uint32_t p = 0; p < pages; ++p) {
    const std::uint32_t stage = p % kStages, slot = (first_page + p) * kCudaPage;
    if (p != 0 && slot % kSplit == 0) end_split(slot / kSplit - 1 - first_split);
    if (warp == 0 && p + kStages - 1 < pages) fetch(p + kStages - 1);
    barrier_wait(bars + 8 * stage, (p / kStages) & 1);
    if (slot < warp_end) {
      float s[4][4], decay[2];
      std::uint32_t weights[2][4];
      score_page<D>(q, ring + stage * kBytes, lane, s);
      weigh_page<D, 16>(s, rows, slot, lane, state, decay, weights);
      add_values<D, 16>(weights, ring + stage * kBytes + kHalf, lane,
                        min(tile_end - slot, kCudaPage), decay, state);
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(bars + 8 * (kStages + stage));
  }
  end_split((item.end - 1) / kSplit - first_split);
  if (!whole) return;
  bf16* out = static_cast<bf16*>(a.output);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float4 m = merged[n * 32];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (!real[j]) continue;
      const std::uint32_t k = (head * heads + member[j]) * D + n * 8 + 2 * t;
      *reinterpret_cast<std::uint32_t*>(
          out + activation_at(a.rows, a.query_heads * D, item.row + tokens[j], k)) =
          pack_bf16(__fdiv_rn(j == 0 ? m.x : m.z, row_sum[j]),
                    __fdiv_rn(j == 0 ? m.y : m.w, row_sum[j]));
    }
  }
}

template <int D>
int run(const AttendArgs& a, CudaStream stream) {
  static const int allowed = allow_shared(prefill<D>, Layout<D>::kBytes);
  if (allowed != 0) return allowed;
  return launch(prefill<D>, dim3(a.kv_heads, a.items_max), kWarps * 32, Layout<D>::kBytes, stream,
                a);
}

}  // namespace

int attend_prefill(const AttendArgs& a, CudaStream stream) {
  switch (a.head_dim) {
    case 64:
      return run<64>(a, stream);
    case 128:
      return run<128>(a, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace quire::cuda
