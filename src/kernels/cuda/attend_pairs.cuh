// kernels/cuda/attend_pairs.cuh - (row, head) pairs of a prefill item: which slots they see, where
// their queries come from and their partials go; and attention of few of them.
#pragma once

#include "kernels/cuda/attend_page.cuh"

namespace quire::cuda {

// Query heads of a KV head, and a quick way to divide a pair of a tile by them.
struct Heads {
  std::uint32_t count, inverse;
  __device__ __forceinline__ explicit Heads(const AttendArgs& a)
      : count(a.query_heads / a.kv_heads), inverse(65536 / count + 1) {
    asm volatile("" : "+r"(count), "+r"(inverse));  // here and nowhere else
  }
  __device__ __forceinline__ std::uint32_t row(std::uint32_t pair) const {
    return pair * inverse >> 16;
  }
};

// Sixteen (row, head) pairs of a tile, of which a lane has two.
template <int D>
struct Pairs {
  Visible rows[2];
  std::uint32_t tokens[2], member[2];  // within the tile; query head within the KV head
  bool real[2];
  std::uint32_t heads;

  __device__ __forceinline__ Pairs(const AttendArgs& a, const AttendItem& item, const Heads& of,
                                   std::uint32_t first)
      : heads(of.count) {
    asm volatile("" : "+r"(first));  // not worth registers
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::uint32_t pair = first + threadIdx.x % 32 / 4 + 8 * j;
      tokens[j] = of.row(pair), member[j] = pair - tokens[j] * heads;
      real[j] = tokens[j] < item.row_count;
      const std::uint32_t end = item.position + tokens[j] + 1;
      rows[j] =
          real[j] ? Visible{a.window != 0 ? end - min(end, a.window) : 0, end} : Visible{0, 0};
    }
  }
  __device__ __forceinline__ void load(const AttendArgs& a, const AttendItem& item,
                                       std::uint32_t (&q)[D / 16][4]) const {
    const std::uint32_t t = threadIdx.x % 4;
    const bf16* queries = static_cast<const bf16*>(a.queries);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const bf16* query =
          queries +
          (std::size_t{item.row + tokens[j]} * a.query_heads + blockIdx.x * heads + member[j]) * D;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
        const bf16* at = query + k * 16 + 2 * t;
        q[k][j] = real[j] ? *reinterpret_cast<const std::uint32_t*>(at) : 0;
        q[k][j + 2] = real[j] ? *reinterpret_cast<const std::uint32_t*>(at + 8) : 0;
      }
    }
  }
  // Split `split` of the item's.
  __device__ __forceinline__ void store(const AttendArgs& a, const AttendItem& item,
                                        std::uint32_t split, const float (&max)[2],
                                        const float (&sum)[2], const float (&out)[D / 8][4]) const {
    const std::uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (!real[j]) continue;
      const std::size_t at = item.partial + std::size_t{tokens[j]} * item.partial_stride + split;
      float* to = a.partials + (at * a.kv_heads + blockIdx.x) * partial_floats(heads, D);
      if (t == 0) to[member[j]] = max[j], to[heads + member[j]] = sum[j];
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<float2*>(to + 2 * heads + member[j] * D + n * 8 + 2 * t) =
            make_float2(out[n][2 * j], out[n][2 * j + 1]);
    }
  }
};

// An item of one set of pairs that leaves partials: each of kAlone warps takes splits of its own and
// streams their pages through a ring of keys and values.
template <int D, std::uint32_t kAlone, std::uint32_t kHalves>
__device__ __forceinline__ void attend_few(const AttendArgs& a, const AttendItem& item,
                                           std::uint8_t* shared, std::uint64_t* barriers,
                                           std::uint32_t warp) {
  constexpr std::uint32_t kHalf = Page<D>::kHalf, kSplitPages = cuda_split(D) / kCudaPage;
  if (warp >= kAlone) return;
  const std::uint32_t lane = threadIdx.x % 32;
  const std::uint32_t ring = shared_address(shared + warp * kHalves * kHalf),
                      bars = shared_address(barriers + warp * kHalves);
  if (lane == 0) {
    for (std::uint32_t i = 0; i < kHalves; ++i) barrier_init(bars + 8 * i, kCopyArrivals);
    barrier_init_fence();
  }
  __syncwarp();
  const Pairs<D> pairs(a, item, Heads(a), 0);
  std::uint32_t q[D / 16][4];
  pairs.load(a, item, q);
  const std::uint32_t first_page = item.begin / kCudaPage,
                      end_page = (item.end + kCudaPage - 1) / kCudaPage;
  const std::uint32_t first_split = first_page / kSplitPages,
                      written_end = item.position + item.row_count;

  struct Place {  // of a page, going through this warp's splits
    std::uint32_t page, end;
  };
  const auto enter = [&](std::uint32_t split) {
    return Place{max(first_page, split * kSplitPages), min(end_page, (split + 1) * kSplitPages)};
  };
  std::uint32_t split = first_split + warp;  // of what is asked for
  Place ahead = enter(split);
  const auto read_table = [&] {
    return ahead.page < ahead.end ? a.tables[item.table + ahead.page] : 0;
  };
  std::uint32_t entry = read_table(), asked = 0, used = 0;  // keys and values in turn
  const auto ask = [&] {
    if (ahead.page >= ahead.end) return;
    const std::uint32_t to = asked % kHalves, full = bars + 8 * to, values = asked++ & 1;
    const std::byte* from = a.arena + std::size_t{entry} * 256 + a.layer_offset +
                            blockIdx.x * a.page_bytes + values * kHalf;
    if (copies(lane)) {
      begin_copies(full, kHalf);
      warp_copy(ring + to * kHalf, from, kHalf, full, lane);
      end_copies(full);
    }
    if (values == 0) return;
    if (++ahead.page == ahead.end) ahead = enter(split += kAlone);
    entry = read_table();
  };
  const auto arrived = [&] {
    const std::uint32_t at = used % kHalves;
    barrier_wait(bars + 8 * at, used++ / kHalves & 1);
    return ring + at * kHalf;
  };
  for (std::uint32_t i = 0; i < kHalves; ++i) ask();
  for (std::uint32_t mine = first_split + warp;; mine += kAlone) {
    const Place here = enter(mine);
    if (here.page >= here.end) break;
    Softmax<D, 16> state;
    state.clear();
    for (std::uint32_t page = here.page; page < here.end; ++page) {
      const std::uint32_t slot = page * kCudaPage;
      float s[4][4], decay[1][2];
      std::uint32_t weights[2][4];
      const std::uint32_t keys = arrived();
#pragma unroll
      for (int i = 0; i < Page<D>::kBlocks; ++i)
        score_block<D>(q, i, keys + i * Page<D>::kBlock, lane, s);
      __syncwarp();
      ask();
      const std::uint32_t moved =
          weigh_pages<D, 16, 1>(s, pairs.rows, slot, lane, state, decay, weights);
      if (__any_sync(~0u, moved)) state.scale(decay[0]);
      const std::uint32_t values = arrived();
#pragma unroll
      for (int i = 0; i < Page<D>::kBlocks; ++i)
        add_values_block<D>(weights, i, values + i * Page<D>::kBlock, lane,
                            min(written_end - slot, kCudaPage), state);
      __syncwarp();
      ask();
    }
    state.finish();
    pairs.store(a, item, mine - first_split, state.max, state.sum, state.out);
  }
}

}  // namespace quire::cuda
