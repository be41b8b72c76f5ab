// One query row per sequence: a warp per (item, KV head), with pages streamed by bulk copies. An item
// is one split, which leaves a partial, or a whole row, whose splits the warp merges as it goes.
//
// Each warp has a ring of half pages of its own (keys and values in turn) and never waits for other
// warps, so a multiprocessor always has enough bytes in flight. Block tables and the next item are
// read ahead. Pages that this step did not write are requested before the kernel that wrote the
// newest rows has ended.
#include <type_traits>

#include "kernels/cuda/attend_decode.cuh"
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"

namespace quire::cuda {
namespace {

template <int D, int kWarps, int kStages>
__device__ __forceinline__ void decode_items(const AttendArgs& a) {
  extern __shared__ __align__(1024) std::uint8_t shared[];
  __shared__ __align__(8) std::uint64_t barriers[kWarps * kStages];
  constexpr std::uint32_t kSplit = cuda_split(D);
  const std::uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const std::uint32_t heads = a.query_heads / a.kv_heads;
  allow_next();
  PageRing<PlainPieces<D>, kStages> ring(a, shared, barriers, kWarps);
  float2* row_room = reinterpret_cast<float2*>(shared + kWarps * kStages * Page<D>::kHalf) +
                     threadIdx.x / 32 * (D / 8 * 32) + lane;
  Work now = ring.ahead;
  ring.start();

  std::uint32_t q[D / 16][4], next_q[D / 16][2];  // read ahead: memory this busy answers late
  const auto load_query = [&](const Work& w) {
    const bf16* query = static_cast<const bf16*>(a.queries) +
                        (std::size_t{w.item.row} * a.query_heads + w.head * heads + g) * D + 2 * t;
    const bool real = w.pages != 0 && g < heads;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      next_q[k][0] = real ? *reinterpret_cast<const std::uint32_t*>(query + k * 16) : 0;
      next_q[k][1] = real ? *reinterpret_cast<const std::uint32_t*>(query + k * 16 + 8) : 0;
    }
  };
  load_query(now);
  while (now.pages != 0) {
    const AttendItem item = now.item;
    Work upcoming;
    ring.find(upcoming, now.index + ring.stride);
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      q[k][0] = next_q[k][0], q[k][2] = next_q[k][1];
      q[k][1] = q[k][3] = 0;
    }
    const std::uint32_t end = item.position + 1;
    const Visible rows[1] = {{a.window != 0 ? end - min(end, a.window) : 0, end}};
    Softmax<D, 8> state;
    Row<D> row{row_room};
    state.clear();
    for (std::uint32_t p = 0; p < now.pages; ++p) {
      const std::uint32_t slot = (now.first_page() + p) * kCudaPage;
      if (p != 0 && slot % kSplit == 0) row.take(state);
      float s[4][4], decay;
      std::uint32_t weights[2][4];
      if (p + 1 == now.pages) load_query(upcoming);
      const std::uint32_t keys = ring.arrived();
#pragma unroll
      for (int i = 0; i < Page<D>::kBlocks; ++i)
        score_block<D>(q, i, keys + i * Page<D>::kBlock, lane, s);
      ring.done();
      weigh_page<D>(s, rows, slot, lane, state, decay, weights);
      const std::uint32_t values = ring.arrived();
#pragma unroll
      for (int i = 0; i < Page<D>::kBlocks; ++i)
        add_values_block<D>(weights, i, values + i * Page<D>::kBlock, lane,
                            min(end - slot, kCudaPage), state);
      ring.done();
    }
    row.store(a, now, lane, state);
    now = upcoming;
  }
}

template <int D, class Shape, bool kForHopper>
__global__ void __launch_bounds__(Shape::kWarps * 32, 1)
    decode(const __grid_constant__ AttendArgs a) {
  if constexpr (kForHopper == kHopper)
    decode_items<D, Shape::kWarps, Shape::kStages>(a);
  else
    __trap();
}

template <int D, bool kForHopper, int kWarps, int kStages>
int run_for(const AttendArgs& a, CudaStream stream) {
  using Shape = DecodeShape<PlainPieces<D>, D, kForHopper, kWarps, kStages>;
  static const int allowed = allow_shared(decode<D, Shape, kForHopper>, Shape::kBytes);
  if (allowed != 0) return allowed;
  return launch(decode<D, Shape, kForHopper>, multiprocessors(), Shape::kWarps * 32, Shape::kBytes,
                stream, a);
}
template <int D, int kWarps, int kStages>  // on Hopper
int run(const AttendArgs& a, CudaStream stream) {
  return hopper() ? run_for<D, true, kWarps, kStages>(a, stream)
                  : run_for<D, false, kWarps, kStages>(a, stream);
}

// A block per (row, query head, 256 dimensions at most), a thread for kEach of them: for two where
// there are many rows, so that all are under way at once. Each lane finds the factors of one split;
// then all thread through the splits in order.
template <int kEach>
__global__ void __launch_bounds__(256 / kEach, kEach == 1 ? 6 : 9) merge(const AttendArgs a) {
  allow_next();
  const AttendMerge m = a.merges[blockIdx.x];
  wait_for_previous();
  if (m.count == 0) return;
  const std::uint32_t heads = a.query_heads / a.kv_heads, dim = a.head_dim;
  const std::uint32_t kv_head = blockIdx.y / heads, member = blockIdx.y % heads;
  const std::uint32_t lane = threadIdx.x % 32, d = (blockIdx.z * blockDim.x + threadIdx.x) * kEach;
  const std::size_t floats = partial_floats(heads, dim), stride = floats * a.kv_heads;
  const float* from = a.partials + (std::size_t{m.first} * a.kv_heads + kv_head) * floats;
  const float* outs_from = from + 2 * heads + member * dim + d;
  using Some = std::conditional_t<kEach == 1, float, float2>;
  float max = kLowest, sum = 0, out[kEach] = {};
  constexpr int kAtOnce = 16;  // few registers, so that it fits beside the kernel it waits for
  for (std::uint32_t i = 0; i < m.count; i += kAtOnce) {
    const std::uint32_t some = min(m.count - i, std::uint32_t{kAtOnce});
    float its_max = kLowest, its_sum = 0;
    Some outs[kAtOnce];
    if (lane < some) {
      its_max = __ldcg(from + (i + lane) * stride + member);
      its_sum = __ldcg(from + (i + lane) * stride + heads + member);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      if (j < some) outs[j] = __ldcg(reinterpret_cast<const Some*>(outs_from + (i + j) * stride));
    float most = its_max;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      const float left = __shfl_up_sync(~0u, most, apart);
      if (lane >= apart) most = fmaxf(most, left);
    }
    float before = __shfl_up_sync(~0u, most, 1);
    before = lane == 0 ? max : fmaxf(before, max);
    float ignored = 0, mine, its;
    merge_factors(before, ignored, its_max, its_sum, mine, its);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (j >= some) break;
      const float keep = __shfl_sync(~0u, mine, j), take = __shfl_sync(~0u, its, j);
      sum = __fmaf_rn(__shfl_sync(~0u, its_sum, j), take, sum * keep);
#pragma unroll
      for (int e = 0; e < kEach; ++e)
        out[e] = __fmaf_rn(reinterpret_cast<const float*>(&outs[j])[e], take, out[e] * keep);
    }
    max = __shfl_sync(~0u, before, 31);  // merge_factors left the new maximum there
  }
  const std::uint32_t k = blockIdx.y * dim + d;
  bf16* to = static_cast<bf16*>(a.output) + activation_at(a.rows, a.query_heads * dim, m.row, k);
#pragma unroll
  for (int e = 0; e < kEach; ++e) out[e] = __fdiv_rn(out[e], sum);
  if constexpr (kEach == 1) {
    __shared__ float room[256];
    if (a.rotated) out[0] = rotate_block(out[0], room, dim);
    *to = __float2bfloat16_rn(out[0]);
  } else {
    *reinterpret_cast<std::uint32_t*>(to) = pack_bf16(out[0], out[1]);
  }
}

}  // namespace

int attend_decode(const AttendArgs& a, CudaStream stream) {
  if (a.format != CudaKvFormat::bf16) return attend_decode_sealed(a, stream);
  if (a.query_heads / a.kv_heads > 8) return cudaErrorInvalidValue;
  switch (a.head_dim) {
    case 64:
      return run<64, 12, 3>(a, stream);
    case 128:
      return run<128, 4, 6>(a, stream);
    case 256:
      return run<256, 3, 4>(a, stream);
  }
  return cudaErrorInvalidValue;
}

int attend_merge(const AttendArgs& a, CudaStream stream) {
  const std::uint32_t threads = a.head_dim < 256 ? a.head_dim : 256;
  if (a.head_dim % threads != 0 || (a.rotated && a.head_dim > threads))
    return cudaErrorInvalidValue;
  const dim3 grid(a.rows, a.query_heads, a.head_dim / threads);
  if (a.rows > kPackedRowsMax && !a.rotated)
    return launch(merge<2>, grid, threads / 2, 0, stream, a);
  return launch(merge<1>, grid, threads, 0, stream, a);
}

}  // namespace quire::cuda
