// Many rows of one sequence: a block per (tile of rows, KV head).
//
// Two groups of four warps take 64 (row, head) pairs each. Two more warps load for both groups, one
// keys and one values: four pages at a time, whose blocks of 64 dimensions are put one below the other,
// so that they look like one page of 128 slots. A group starts the scores of its next pages and the
// value sums of its current ones, and computes the next weights while the value sums run. Splits, pages
// and weights are those of attend_page.cuh and sums have the bits of mma.sync, so each row gets the bits
// that decoding it alone would give. A tile walks all its splits and merges them as it goes. If tiles
// are few and contexts long, several blocks share a tile and leave partials for attend_merge. Up to 16
// pairs are too few for this scheme: then each warp takes splits of its own, as in decoding.
//
// Before Hopper the kernel uses mma.sync, and shared memory holds one step of two pages.
#include <algorithm>
#include <type_traits>

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
  static constexpr std::size_t kDecays = kCudaTile * S::kPages * sizeof(float);
  static constexpr std::size_t kBytes = 2 * S::kStages * kHalf + kMerged + kDecays;
  // With the 2 KB that a block has besides, one step less of what caches leave to shared memory: with
  // the next one, attend_merge starts later.
  static_assert(kBytes <= (kForHopper ? 194 << 10 : kSharedAnywhere));
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
    const std::uint64_t from = operand(keys, 16);
#pragma unroll
    for (int k = 0; k < D / 16; ++k)
      wgmma_scores(s, q[k], further(from, k / 4 * kBlock + k % 4 * 32), k != 0);
  } else {
#pragma unroll
    for (int p = 0; p < kPages; ++p)
#pragma unroll
      for (int block = 0; block < D / 64; ++block)
        score_block<D>(q, block, keys + block * kBlock + p * Page<D>::kBlock, threadIdx.x % 32,
                       reinterpret_cast<float(&)[4][4]>(s[4 * p]));
  }
}
// Sixteen slots; the first of a split start the sums.
template <int kOut>
__device__ __forceinline__ void start_values(float (&out)[kOut][4],
                                             const std::uint32_t (&weights)[4],
                                             std::uint32_t values, int step, bool add) {
  if constexpr (kHopper) {
    wgmma_values(out, weights, further(operand(values, kBlock), step * (16 * 128)), add);
  } else {
#pragma unroll
    for (int n = 0; !add && n < kOut; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
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
__device__ __forceinline__ void commit() {
  if constexpr (kHopper) wgmma_commit();
}
// All but the newest commits are done; what they wrote may be read.
template <int kNewest, int kCount>
__device__ __forceinline__ void finish(float (&r)[kCount][4]) {
  if constexpr (kHopper) {
    wgmma_wait<kNewest>();
    pin(r);
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

// The ninth warp brings keys and, on Hopper, the tenth values: a lane knows a page. Pages that the
// item does not have are not read.
template <int D>
__device__ __forceinline__ void bring(const AttendArgs& a, const AttendItem& item, Ring<D> ring,
                                      std::uint32_t first_step, std::uint32_t steps,
                                      std::uint32_t from_side, std::uint32_t to_side) {
  const std::uint32_t lane = threadIdx.x % 32, first = item.begin / kCudaPage,
                      end = (item.end + kCudaPage - 1) / kCudaPage;
  for (std::uint32_t i = 0; i < steps; ++i) {
    const std::uint32_t page = (first_step + i) * kPages + lane;
    const bool mine = lane < kPages && page >= first && page < end;
    const std::byte* from = mine ? a.arena + std::size_t{a.tables[item.table + page]} * 256 +
                                       a.layer_offset + blockIdx.x * a.page_bytes
                                 : nullptr;
    const std::uint32_t count = __popc(__ballot_sync(~0u, mine));
    for (std::uint32_t values = from_side; values < to_side; ++values) {
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

// __fdiv_rn of all, by one reciprocal for each row: the steps that division takes where nothing
// becomes too large or too small, from its refined reciprocal on.
template <int kCount>
__device__ __forceinline__ void divide(float (&out)[kCount][4], const float (&by)[2]) {
  constexpr float kSmall = 0x1p-60f, kLarge = 0x1p60f;
  bool plain = true;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float least = by[j], most = by[j];
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
      for (int i = 2 * j; i < 2 * j + 2; ++i) {
        least = fminf(least, fabsf(out[n][i]));
        most = fmaxf(most, fabsf(out[n][i]));
      }
    plain = plain && least >= kSmall && most <= kLarge;
  }
  if (plain) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float r;
      asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(by[j]));
      r = __fmaf_rn(r, __fmaf_rn(-by[j], r, 1.0f), r);
#pragma unroll
      for (int n = 0; n < kCount; ++n)
#pragma unroll
        for (int i = 2 * j; i < 2 * j + 2; ++i) {
          const float x = out[n][i];
          float q = x * r;
          q = __fmaf_rn(__fmaf_rn(-by[j], q, x), r, q);
          out[n][i] = __fmaf_rn(__fmaf_rn(-by[j], q, x), r, q);
        }
    }
  } else {
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] = __fdiv_rn(out[n][i], by[i / 2]);
  }
}

template <int D>
__device__ __forceinline__ void attend(const AttendArgs& a, const AttendItem& item, Ring<D> ring,
                                       std::uint8_t* shared, std::uint32_t warp,
                                       std::uint32_t first_step, std::uint32_t steps) {
  constexpr std::uint32_t kSplit = cuda_split(D), kSplitSteps = kSplit / kSlots;
  const std::uint32_t lane = threadIdx.x % 32, t = lane % 4, group = warp / 4;
  const Heads heads(a);
  const auto pairs = [&] { return Pairs<D>(a, item, heads, warp * 16); };
  const std::uint32_t tile_end = item.position + item.row_count;
  // What any row of this group sees ends here.
  const std::uint32_t first_token = heads.row(group * 64), last_token = heads.row(group * 64 + 63);
  const std::uint32_t group_end =
      first_token >= item.row_count
          ? 0
          : item.position + min(last_token + 1, std::uint32_t{item.row_count});
  const std::uint32_t mine =  // steps
      group_end <= first_step * kSlots ? 0
                                       : min(steps, (group_end + kSlots - 1) / kSlots - first_step);
  std::uint32_t q[D / 16][4];
  pairs().load(a, item, q);
  // Steps in which some row of this warp may not see everything.
  const std::uint32_t last_end = item.position + heads.row(warp * 16 + 15) + 1,
                      sees_from = a.window == 0 ? 0 : last_end - min(last_end, a.window),
                      sees_to = item.position + heads.row(warp * 16) + 1;

  float4* merged = reinterpret_cast<float4*>(shared + 2 * kStages * Layout<D>::kHalf) +
                   warp * 32 * (D / 8) + lane;
  // What rows' outputs are multiplied by before each page of a step.
  float* decays = reinterpret_cast<float*>(shared + Layout<D>::kBytes - Layout<D>::kDecays) +
                  (warp * 16 + lane / 4) * kPages;
  // Reference and sum of two rows so far, one of the four numbers in each lane that has them.
  float merged_row = t < 2 ? kLowest : 0;
  Softmax<D, 16> state;
  const bool whole = item.partial == kNoPartial;
  const std::uint32_t first_split = item.begin / kSplit;
  const auto split_of = [&](std::uint32_t i) {
    return (first_step + i) / kSplitSteps - first_split;
  };
  // With the split's last sums and outputs; returns the sums of whole rows.
  const auto end_split = [&](std::uint32_t split, const float(&max)[2], float(&sum)[2], bool last) {
#pragma unroll
    for (int j = 0; j < 2; ++j) sum[j] = sum_of_row(sum[j]);
    if (!whole) return pairs().store(a, item, split, max, sum, state.out);
    float keep[2], take[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float most = __shfl_sync(~0u, merged_row, j, 4), all = __shfl_sync(~0u, merged_row, 2 + j, 4);
      merge_factors(most, all, max[j], sum[j], keep[j], take[j]);
      merged_row = t == j ? most : t == 2 + j ? all : merged_row;
      sum[j] = all;
    }
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float4 m = split == 0 ? make_float4(0, 0, 0, 0) : merged[n * 32];
      float(&out)[4] = state.out[n];
      out[0] = __fmaf_rn(out[0], take[0], m.x * keep[0]);
      out[1] = __fmaf_rn(out[1], take[0], m.y * keep[0]);
      out[2] = __fmaf_rn(out[2], take[1], m.z * keep[1]);
      out[3] = __fmaf_rn(out[3], take[1], m.w * keep[1]);
      if (!last) merged[n * 32] = make_float4(out[0], out[1], out[2], out[3]);
    }
  };
  float s[4 * kPages][4];
  std::uint32_t weights[2 * kPages][4] = {};
  const bool never = a.head_dim == 0;  // as far as the compiler knows
  state.clear();
  if (mine != 0) {
    const std::uint32_t keys = ring.wait(0, 0);
    begin();
    start_scores<D>(s, q, keys);
    commit();
    finish<0>(s);
    ring.release(0, 0);
  }
  for (std::uint32_t i = 0; i < mine; ++i) {
    const std::uint32_t slot = (first_step + i) * kSlots;
    const bool begins = i == 0 || slot % kSplit == 0, more = i + 1 < mine;
    if (slot < sees_from || slot + kSlots > sees_to)
      hide_slots<2, kPages>(s, pairs().rows, slot, lane);
    const float ended_max[2] = {state.max[0], state.max[1]};
    float ended_sum[2] = {state.sum[0], state.sum[1]};
    if (begins) begin_rows(s, state);
    // Values of the step before are still on their way into the outputs.
    std::uint32_t moved = 0;   // a bit for each page where a reference of this warp's rows moves
    std::uint32_t voices = 0;  // the same of all but the first page, digits to base five
    const auto weigh_moving = [&](auto from) {
      float decay[kPages][2];
      moved = __reduce_or_sync(~0u, weigh_seen<from.value, kPages>(s, state, decay));
#pragma unroll
      for (int p = from.value; p < kPages; ++p)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          if (t == 0) decays[8 * j * kPages + p] = decay[p][j];
      voices = (moved >> 1 & 1) + (moved >> 2 & 1) * 5 + (moved >> 3 & 1) * 25;
      __syncwarp();
    };
    constexpr int kHalfway = kPages / 2;
    if (!stays<0, kHalfway>(s, state)) {
      weigh_moving(std::integral_constant<int, 0>());
    } else {
      weigh_settled<0, kHalfway>(s, state);
      if (!stays<kHalfway, kPages>(s, state))
        weigh_moving(std::integral_constant<int, kHalfway>());
      else
        weigh_settled<kHalfway, kPages>(s, state);
    }
    // The group's: how many warps are to multiply their outputs before each page.
    const std::uint32_t parted = group_count(group, lane < voices);
    finish<0>(state.out);
    pin(s);
    keep_until_here(weights, never, ring.at);
    if (kHopper && i != 0) ring.release(i - 1, 1);
    pack_weights<16, kPages>(s, weights);
    pin(weights);
    // After the last step some scores again, which nobody reads.
    const std::uint32_t keys = more ? ring.wait(i + 1, 0) : ring.side(i, 0);
    begin();
    start_scores<D>(s, q, keys);
    commit();
    if (begins && i != 0) end_split(split_of(i - 1), ended_max, ended_sum, false);
    const std::uint32_t values = ring.wait(i, 1);
    if (slot < item.begin / kCudaPage * kCudaPage || slot + kSlots > tile_end) {
      const std::uint32_t first = item.begin / kCudaPage * kCudaPage;
      if (first > slot) clear_values<D>(values, 0, first - slot);
      if (tile_end < slot + kSlots) clear_values<D>(values, tile_end - slot, kSlots);
      fence_async();
      group_barrier(group);
    }
    if (moved & 1) state.scale({decays[0], decays[8 * kPages]});
    if (parted == 0) {
      begin();
#pragma unroll
      for (int h = 0; h < 2 * kPages; ++h)
        start_values(state.out, weights[h], values, h, h != 0 || !begins);
      commit();
    } else {
#pragma unroll
      for (int p = 0; p < kPages; ++p) {
        if (p != 0 && (p == 1 ? parted % 5 : p == 2 ? parted / 5 % 5 : parted / 25) != 0) {
          finish<0>(state.out);
          if (moved >> p & 1) state.scale({decays[p], decays[8 * kPages + p]});
        }
        begin();
        start_values(state.out, weights[2 * p], values, 2 * p, p != 0 || !begins);
        start_values(state.out, weights[2 * p + 1], values, 2 * p + 1, true);
        commit();
      }
    }
    finish<1>(s);
    if constexpr (!kHopper) ring.release(i, 1);
    if (more) ring.release(i + 1, 0);
  }
  finish<0>(state.out);
  keep_until_here(weights, never, ring.at);
  if (kHopper && mine != 0) ring.release(mine - 1, 1);
  for (std::uint32_t i = mine; i < steps; ++i)  // steps that only the other group sees
    for (std::uint32_t side = 0; side < 2; ++side) {
      ring.wait(i, side);
      ring.release(i, side);
    }
  const std::uint32_t last = mine == 0 ? 0 : split_of(mine - 1);
  end_split(last, state.max, state.sum, true);
  if (!whole) {
    state.clear();
    for (std::uint32_t split = last + 1; split <= split_of(steps - 1); ++split)
      pairs().store(a, item, split, state.max, state.sum, state.out);
    return;
  }
  divide(state.out, state.sum);
  const Pairs<D> ours = pairs();
  bf16* out = static_cast<bf16*>(a.output);
  const bool plain = a.rows > kPackedRowsMax;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    if (!ours.real[j]) continue;
    const std::uint32_t k = (blockIdx.x * heads.count + ours.member[j]) * D + 2 * t,
                        row = item.row + ours.tokens[j];
    bf16* to = out + (std::size_t{row} * a.query_heads * D + k);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      bf16* at =
          plain ? to + n * 8 : out + activation_at(a.rows, a.query_heads * D, row, k + n * 8);
      *reinterpret_cast<std::uint32_t*>(at) =
          pack_bf16(state.out[n][2 * j], state.out[n][2 * j + 1]);
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
  // Nor is it to find out again and again where shared memory is.
  const Ring<D> ring{shared_address(shared), __shfl_sync(~0u, shared_address(barriers), 0)};
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
    if constexpr (kHopper) {
      if (warp < kWarps + 2 && !few)
        bring<D>(a, item, ring, first_step, steps, warp - kWarps, warp - kWarps + 1);
    } else {
      if (!few) bring<D>(a, item, ring, first_step, steps, 0, 2);
    }
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
