// Many rows of one sequence: a block per (tile of rows, KV head).
//
// Two groups of four warps take 64 (row, head) pairs each and share what a ninth warp brings: four
// pages at a time, whose blocks of 64 dimensions it puts one below the other, so that they look like
// one page of 128 slots. While one group weighs its scores, the other has the tensor cores, for the
// scores of its next pages and the values of these. Splits, pages and weights are attend_page.cuh's
// and sums have the bits of mma.sync, so each row gets what decoding it alone would give. A tile
// walks all its splits and merges them as it goes, or, where tiles are few and contexts long,
// several blocks share a tile and leave partials for attend_merge.
// Up to 16 pairs are too few for that: each warp takes splits of its own, as decoding does.
//
// Before Hopper the tensor cores are asked by mma.sync, and shared memory holds one step of two pages.
#include <algorithm>

#include "kernels/cuda/attend_pairs.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/wgmma.cuh"

namespace quire::cuda {
namespace {

constexpr int kWarps = kCudaTile / 16;

template <bool kForHopper>
struct Step {
  static constexpr std::uint32_t kPages = kForHopper ? 4 : 2, kSlots = kPages * kCudaPage;
  static constexpr std::uint32_t kBlock = kSlots * 128;  // bytes of 64 dimensions
  static constexpr int kStages = kForHopper ? 2 : 1;
  static constexpr int kThreads = (kWarps + (kForHopper ? 4 : 1)) * 32;
};
template <int D, bool kForHopper = kHopper>
struct Layout {
  using S = Step<kForHopper>;
  static constexpr std::size_t kMerged = std::size_t{kWarps} * 32 * (D / 8) * sizeof(float4);
  static constexpr std::uint32_t kHalf = D / 64 * S::kBlock;  // keys, or values, of a step
  static constexpr std::size_t kBytes = 2 * S::kStages * kHalf + kMerged;
  static_assert(kForHopper || kBytes <= kSharedAnywhere);
};
// On the device:
constexpr std::uint32_t kPages = Step<kHopper>::kPages, kSlots = Step<kHopper>::kSlots,
                        kBlock = Step<kHopper>::kBlock, kStages = Step<kHopper>::kStages;
// Of few pairs: warps, with a ring of so many halves of pages each.
template <int D>
constexpr std::uint32_t kAlone = std::min<std::size_t>(kWarps, Layout<D>::kBytes / Page<D>::kBytes);
template <int D>
constexpr std::uint32_t kHalves = Layout<D>::kBytes / (kAlone<D> * Page<D>::kHalf);

// Products are started after begin() and done after finish().
__device__ __forceinline__ void begin() {
  if constexpr (kHopper) wgmma_fence();
}
template <int D>
__device__ __forceinline__ void start_scores(float (&s)[4 * kPages][4],
                                             const std::uint32_t (&q)[D / 16][4],
                                             std::uint32_t keys) {
  if constexpr (kHopper) {
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      wgmma_scores(s, q[k], operand(keys + k / 4 * kBlock + k % 4 * 32, 16), k != 0);
  } else {
#pragma unroll
    for (int p = 0; p < kPages; ++p)
#pragma unroll
      for (int block = 0; block < D / 64; ++block)
        score_block<D>(q, block, keys + block * kBlock + p * Page<D>::kBlock, threadIdx.x % 32,
                       reinterpret_cast<float(&)[4][4]>(s[4 * p]));
  }
}
// Sixteen slots.
template <int kOut>
__device__ __forceinline__ void start_values(float (&out)[kOut][4],
                                             const std::uint32_t (&weights)[4],
                                             std::uint32_t values, int step) {
  if constexpr (kHopper) {
    wgmma_values(out, weights, operand(values + step * (16 * 128), kBlock));
  } else {
    const std::uint32_t lane = threadIdx.x % 32, slot = step * 16 + (lane & 15);
#pragma unroll
    for (int n = 0; n < kOut; n += 2) {
      std::uint32_t r[4];
      load_matrices_transposed(r,
                               values + n / 8 * kBlock + Page<64>::at(slot, n % 8 + (lane >> 4)));
      mma_bf16(out[n], weights, r[0], r[1]);
      mma_bf16(out[n + 1], weights, r[2], r[3]);
    }
  }
}
template <int kOut>
__device__ __forceinline__ void finish(float (&s)[4 * kPages][4], float (&out)[kOut][4]) {
  if constexpr (kHopper) {
    wgmma_commit();
    wgmma_wait();
    pin(s);
    pin(out);
  }
}

// Slots [begin, end) hold anything, NaN included: zeros take their place. The other group may do
// the same at the same time.
template <int D>
__device__ __forceinline__ void clear_values(std::uint32_t values, std::uint32_t begin,
                                             std::uint32_t end) {
  for (std::uint32_t i = begin * 8 + threadIdx.x % 128; i < end * 8; i += 128)
#pragma unroll
    for (int block = 0; block < D / 64; ++block) clear_shared(values + block * kBlock + i * 16);
}

// Where keys and values of step i are, and the barriers of both: full, then empty.
template <int D>
struct Ring {
  std::uint32_t at, bars;
  __device__ __forceinline__ std::uint32_t side(std::uint32_t i, std::uint32_t values) const {
    return at + (values * kStages + i % kStages) * Layout<D>::kHalf;
  }
  __device__ __forceinline__ std::uint32_t full(std::uint32_t i, std::uint32_t values) const {
    return bars + 8 * (values * 2 * kStages + i % kStages);
  }
  __device__ __forceinline__ std::uint32_t wait(std::uint32_t i, std::uint32_t values) const {
    barrier_wait(full(i, values), i / kStages & 1);
    return side(i, values);
  }
  __device__ __forceinline__ void release(std::uint32_t i, std::uint32_t values) const {
    if constexpr (!kHopper) __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(full(i, values) + 8 * kStages);
  }
};

// The ninth warp: a lane knows a page. Pages that the item does not have are not read.
template <int D>
__device__ __forceinline__ void bring(const AttendArgs& a, const AttendItem& item, Ring<D> ring,
                                      std::uint32_t first_step, std::uint32_t steps) {
  const std::uint32_t lane = threadIdx.x % 32, first = item.begin / kCudaPage,
                      end = (item.end + kCudaPage - 1) / kCudaPage;
  for (std::uint32_t i = 0; i < steps; ++i) {
    const std::uint32_t page = (first_step + i) * kPages + lane;
    const bool mine = lane < kPages && page >= first && page < end;
    const std::byte* from = mine ? a.arena + std::size_t{a.tables[item.table + page]} * 256 +
                                       a.layer_offset + blockIdx.x * a.page_bytes
                                 : nullptr;
    const std::uint32_t count = __popc(__ballot_sync(~0u, mine));
    for (std::uint32_t values = 0; values < 2; ++values) {
      const std::uint32_t full = ring.full(i, values);
      if (i >= kStages) barrier_wait(full + 8 * kStages, (i / kStages - 1) & 1);
      if (copies(lane)) begin_copies(full, count * Page<D>::kHalf);
      __syncwarp();
#pragma unroll
      for (int block = 0; block < D / 64; ++block)
        lane_copies(mine, ring.side(i, values) + block * kBlock + lane * Page<D>::kBlock,
                    from + values * Page<D>::kHalf + block * Page<D>::kBlock, Page<D>::kBlock, full,
                    lane);
      end_copies(full);
    }
  }
}

template <int D>
__device__ __forceinline__ void attend(const AttendArgs& a, const AttendItem& item, Ring<D> ring,
                                       std::uint8_t* shared, std::uint32_t warp,
                                       std::uint32_t first_step, std::uint32_t steps) {
  constexpr std::uint32_t kSplit = cuda_split(D), kSplitSteps = kSplit / kSlots;
  const std::uint32_t lane = threadIdx.x % 32, t = lane % 4, group = warp / 4;
  const std::uint32_t heads = a.query_heads / a.kv_heads, head = blockIdx.x;
  const Pairs<D> pairs(a, item, warp * 16);
  const std::uint32_t tile_end = item.position + item.row_count;
  // What any row of this group sees ends here.
  const std::uint32_t first_token = group * 64 / heads, last_token = (group * 64 + 63) / heads;
  const std::uint32_t group_end =
      first_token >= item.row_count
          ? 0
          : item.position + min(last_token + 1, std::uint32_t{item.row_count});
  const std::uint32_t mine =  // steps
      group_end <= first_step * kSlots ? 0
                                       : min(steps, (group_end + kSlots - 1) / kSlots - first_step);
  std::uint32_t q[D / 16][4];
  pairs.load(a, item, q);

  float4* merged = reinterpret_cast<float4*>(shared + 2 * kStages * Layout<D>::kHalf) +
                   warp * 32 * (D / 8) + lane;
  float row_max[2] = {kLowest, kLowest}, row_sum[2] = {0, 0};
  Softmax<D, 16> state;
  const bool whole = item.partial == kNoPartial;
  const auto end_split = [&](std::uint32_t split) {
    state.finish();
    if (whole) {
      float keep[2], take[2];
#pragma unroll
      for (int j = 0; j < 2; ++j)
        merge_factors(row_max[j], row_sum[j], state.max[j], state.sum[j], keep[j], take[j]);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        float4 m = split == 0 ? make_float4(0, 0, 0, 0) : merged[n * 32];
        m.x = __fmaf_rn(state.out[n][0], take[0], m.x * keep[0]);
        m.y = __fmaf_rn(state.out[n][1], take[0], m.y * keep[0]);
        m.z = __fmaf_rn(state.out[n][2], take[1], m.z * keep[1]);
        m.w = __fmaf_rn(state.out[n][3], take[1], m.w * keep[1]);
        merged[n * 32] = m;
      }
    } else {
      pairs.store(a, item, split, state);
    }
  };
  float s[4 * kPages][4];
  if (mine != 0) {
    const std::uint32_t keys = ring.wait(0, 0);
    begin();
    start_scores<D>(s, q, keys);
    finish(s, state.out);
    ring.release(0, 0);
  }
  const std::uint32_t first_split = item.begin / kSplit;
  for (std::uint32_t i = 0; i < steps;) {
    const std::uint32_t split = (first_step + i) / kSplitSteps;
    const std::uint32_t split_end = min(steps, (split + 1) * kSplitSteps - first_step);
    state.clear();
    for (; i < min(mine, split_end); ++i) {
      const std::uint32_t slot = (first_step + i) * kSlots;
      float decay[kPages][2];
      std::uint32_t weights[2 * kPages][4];
      const std::uint32_t moved =
          weigh_pages<D, 16, kPages>(s, pairs.rows, slot, lane, state, decay, weights);
      if (__any_sync(~0u, moved & 1)) state.scale(decay[0]);
      const bool between = group_any(group, moved > 1);  // some later page moves a row's reference
      const std::uint32_t values = ring.wait(i, 1);
      if (slot < item.begin / kCudaPage * kCudaPage || slot + kSlots > tile_end) {
        const std::uint32_t first = item.begin / kCudaPage * kCudaPage;
        if (first > slot) clear_values<D>(values, 0, first - slot);
        if (tile_end < slot + kSlots) clear_values<D>(values, tile_end - slot, kSlots);
        fence_async();
        group_barrier(group);
      }
      // After the last step its own scores again, which nobody reads.
      const bool more = i + 1 < mine;
      const std::uint32_t keys = more ? ring.wait(i + 1, 0) : ring.side(i, 0);
      if (between) {
#pragma unroll
        for (int p = 0; p < kPages; ++p) {
          if (p != 0) state.scale(decay[p]);
          begin();
          start_values(state.out, weights[2 * p], values, 2 * p);
          start_values(state.out, weights[2 * p + 1], values, 2 * p + 1);
          finish(s, state.out);
        }
        begin();
        start_scores<D>(s, q, keys);
        finish(s, state.out);
      } else {
        begin();
        start_scores<D>(s, q, keys);
#pragma unroll
        for (int h = 0; h < 2 * kPages; ++h) start_values(state.out, weights[h], values, h);
        finish(s, state.out);
      }
      ring.release(i, 1);
      if (more) ring.release(i + 1, 0);
    }
    for (; i < split_end; ++i)  // steps that only the other group sees
      for (std::uint32_t side = 0; side < 2; ++side) {
        ring.wait(i, side);
        ring.release(i, side);
      }
    end_split(split - first_split);
  }
  if (!whole) return;
  bf16* out = static_cast<bf16*>(a.output);
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    const float4 m = merged[n * 32];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (!pairs.real[j]) continue;
      const std::uint32_t k = (head * heads + pairs.member[j]) * D + n * 8 + 2 * t;
      *reinterpret_cast<std::uint32_t*>(
          out + activation_at(a.rows, a.query_heads * D, item.row + pairs.tokens[j], k)) =
          pack_bf16(__fdiv_rn(j == 0 ? m.x : m.z, row_sum[j]),
                    __fdiv_rn(j == 0 ? m.y : m.w, row_sum[j]));
    }
  }
}

template <int D>
__device__ __forceinline__ void prefill_item(const AttendArgs& a) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[4 * kStages];
  __shared__ __align__(8) std::uint64_t alone[kAlone<D> * kHalves<D>];
  // All lanes of a warp agree on it, and the compiler is to know.
  const std::uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const Ring<D> ring{shared_address(shared), shared_address(barriers)};
  allow_next();
  if (threadIdx.x == 0) {
    init_ring(ring.bars, kStages, kWarps);
    init_ring(ring.bars + 8 * 2 * kStages, kStages, kWarps);
  }
  __syncthreads();
  wait_for_previous();
  if (blockIdx.y >= *a.item_count) return;
  const AttendItem item = a.items[blockIdx.y];
  const bool few =
      item.partial != kNoPartial && item.row_count * (a.query_heads / a.kv_heads) <= kCudaFewPairs;
  const std::uint32_t first_step = item.begin / kSlots,
                      steps = (item.end + kSlots - 1) / kSlots - first_step;
  if (warp >= kWarps) {
    if constexpr (kHopper) fewer_registers<24>();
    if (warp == kWarps && !few) bring<D>(a, item, ring, first_step, steps);
  } else {
    if constexpr (kHopper) more_registers<240>();
    if (few)
      attend_few<D, kAlone<D>, kHalves<D>>(a, item, shared, alone, warp);
    else
      attend<D>(a, item, ring, shared, warp, first_step, steps);
  }
}

template <int D, bool kForHopper>
__global__ void __launch_bounds__(Step<kForHopper>::kThreads, 1)
    prefill(const __grid_constant__ AttendArgs a) {
  if constexpr (kForHopper == kHopper)
    prefill_item<D>(a);
  else
    __trap();
}

template <int D, bool kForHopper>
int run_for(const AttendArgs& a, CudaStream stream) {
  constexpr std::size_t kBytes = Layout<D, kForHopper>::kBytes;
  static const int allowed = allow_shared(prefill<D, kForHopper>, kBytes);
  if (allowed != 0) return allowed;
  return launch(prefill<D, kForHopper>, dim3(a.kv_heads, a.items_max), Step<kForHopper>::kThreads,
                kBytes, stream, a);
}
template <int D>
int run(const AttendArgs& a, CudaStream stream) {
  return hopper() ? run_for<D, true>(a, stream) : run_for<D, false>(a, stream);
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
