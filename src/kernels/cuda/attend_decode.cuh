// kernels/cuda/attend_decode.cuh - what decoding over plain and over sealed pages share: a warp's
// way through its items, and how a row ends.
#pragma once

#include "kernels/cuda/attend_page.cuh"
#include "kernels/cuda/packed.h"

namespace quire::cuda {

// Where a warp stands in its list of work.
struct Work {
  AttendItem item;
  std::uint32_t index, head, pages;
  std::uint32_t entry, later;  // tables: of page `lane` of the 32 at hand, and of the next 32

  __device__ __forceinline__ void find(const AttendArgs& a, std::uint32_t i, std::uint32_t count) {
    index = i;
    pages = 0;
    if (i >= count) return;
    head = i % a.kv_heads;
    item = a.items[i / a.kv_heads];
    pages = (item.end + kCudaPage - 1) / kCudaPage - first_page();
  }
  __device__ __forceinline__ void load(const AttendArgs& a, std::uint32_t i, std::uint32_t count,
                                       std::uint32_t lane) {
    find(a, i, count);
    entry = lane < pages ? a.tables[item.table + first_page() + lane] : 0;
    read_on(a, 32 + lane);
  }
  __device__ __forceinline__ void read_on(const AttendArgs& a, std::uint32_t page) {
    later = page < pages ? a.tables[item.table + first_page() + page] : 0;
  }
  __device__ __forceinline__ std::uint32_t first_page() const { return item.begin / kCudaPage; }
};

// The row is done: its output, or the partial of its one split. `end_split` merges the last split
// into (out, max, sum) and is told whether it is the only one.
template <int D, class EndSplit>
__device__ __forceinline__ void store_row(const AttendArgs& a, const Work& now, std::uint32_t lane,
                                          Softmax<D, 8>& state, const float (&out)[D / 8][2],
                                          const float& max, const float& sum,
                                          const EndSplit& end_split) {
  constexpr std::uint32_t kSplit = cuda_split(D);
  const std::uint32_t g = lane / 4, t = lane % 4, heads = a.query_heads / a.kv_heads;
  const AttendItem& item = now.item;
  if (item.partial == kNoPartial) {
    end_split(item.begin / kSplit == (item.end - 1) / kSplit);
    if (g >= heads) return;
    bf16* to = static_cast<bf16*>(a.output);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const std::uint32_t k = (now.head * heads + g) * D + n * 8 + 2 * t;
      *reinterpret_cast<std::uint32_t*>(to +
                                        activation_at(a.rows, a.query_heads * D, item.row, k)) =
          pack_bf16(__fdiv_rn(out[n][0], sum), __fdiv_rn(out[n][1], sum));
    }
  } else {
    state.finish();
    if (g >= heads) return;
    float* to =
        a.partials + (std::size_t{item.partial} * a.kv_heads + now.head) * partial_floats(heads, D);
    if (t == 0) to[g] = state.max[0], to[heads + g] = state.sum[0];
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
      *reinterpret_cast<float2*>(to + 2 * heads + g * D + n * 8 + 2 * t) =
          make_float2(state.out[n][0], state.out[n][1]);
  }
}

}  // namespace quire::cuda
