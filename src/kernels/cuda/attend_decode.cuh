// kernels/cuda/attend_decode.cuh - what decoding over plain and over sealed pages share: a warp's
// way through its items, the pages that stream in meanwhile, and how a row ends.
#pragma once

#include "kernels/cuda/attend_page.cuh"
#include "kernels/cuda/hadamard.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/packed.h"

namespace quire::cuda {

// One item and KV head of a warp's list.
struct Work {
  AttendItem item;
  std::uint32_t index, head, pages, pieces;
  std::uint32_t entry, later;  // tables: of page `lane` of the 32 at hand, and of the next 32
  std::uint32_t row_entry;     // sealed formats: of row page `lane`

  __device__ __forceinline__ std::uint32_t first_page() const { return item.begin / kCudaPage; }
  __device__ __forceinline__ void read_on(const AttendArgs& a, std::uint32_t page) {
    later = page < pages ? a.tables[item.table + first_page() + page] : 0;
  }
};

// Where the pieces of an item lie. bf16: its pages, keys and values apart.
template <int D>
struct PlainPieces {
  static constexpr std::uint32_t kBytes = Page<D>::kHalf;  // of the largest piece
  static constexpr std::uint32_t kPerPage = 2;

  __device__ static __forceinline__ std::uint32_t count(const Work& w) { return 2 * w.pages; }
  __device__ static __forceinline__ std::uint32_t row_block(const AttendArgs&, const Work&,
                                                            std::uint32_t) {
    return kNoPartial;
  }
  __device__ static __forceinline__ const std::byte* find(const AttendArgs& a, const Work& w,
                                                          std::uint32_t piece,
                                                          std::uint32_t& bytes) {
    bytes = kBytes;
    return a.arena + std::size_t{__shfl_sync(~0u, w.entry, piece / 2 % 32)} * 256 + a.layer_offset +
           w.head * a.page_bytes + piece % 2 * kBytes;
  }
};

// A warp's ring of pieces: asked for in order, through all its items, and used in order.
template <class Pieces, int kStages>
struct PageRing {
  const AttendArgs& a;
  std::uint32_t ring, bars, lane, count, stride;
  Work ahead, next;                              // what is being asked for, and what comes after it
  std::uint32_t asked = 0, used = 0, piece = 0;  // piece: of `ahead`

  __device__ __forceinline__ PageRing(const AttendArgs& args, std::uint8_t* shared,
                                      std::uint64_t* barriers, std::uint32_t warps)
      : a(args), lane(threadIdx.x % 32) {
    const std::uint32_t warp = threadIdx.x / 32;
    ring = shared_address(shared + warp * kStages * Pieces::kBytes);
    bars = shared_address(barriers + warp * kStages);
    if (lane == 0) {
      for (int i = 0; i < kStages; ++i) barrier_init(bars + 8 * i, kCopyArrivals);
      barrier_init_fence();
    }
    __syncwarp();
    count = *a.item_count * a.kv_heads, stride = gridDim.x * warps;
    load(ahead, warp * gridDim.x + blockIdx.x);
    load(next, ahead.index + stride);
  }

  // An item without pieces is the end.
  __device__ __forceinline__ void find(Work& w, std::uint32_t index) const {
    w.index = index;
    w.pages = w.pieces = 0;
    if (index >= count) return;
    w.head = index % a.kv_heads;
    w.item = a.items[index / a.kv_heads];
    if (w.item.end > w.item.begin)
      w.pages = (w.item.end + kCudaPage - 1) / kCudaPage - w.first_page();
    w.pieces = Pieces::count(w);
  }
  __device__ __forceinline__ void load(Work& w, std::uint32_t index) const {
    find(w, index);
    w.entry = lane < w.pages ? a.tables[w.item.table + w.first_page() + lane] : 0;
    w.read_on(a, 32 + lane);
    const std::uint32_t block = w.pieces != 0 ? Pieces::row_block(a, w, lane) : kNoPartial;
    w.row_entry = block != kNoPartial ? a.row_tables[w.item.table + block] : 0;
  }
  __device__ __forceinline__ void ask() {
    if (piece == ahead.pieces) return;
    std::uint32_t bytes;
    const std::byte* from = Pieces::find(a, ahead, piece, bytes);
    const std::uint32_t stage = asked++ % kStages, full = bars + 8 * stage;
    if (copies(lane)) {
      begin_copies(full, bytes);
      warp_copy(ring + stage * Pieces::kBytes, from, bytes, full, lane);
      end_copies(full);
    }
    if (++piece == ahead.pieces) {
      piece = 0;
      ahead = next;
      load(next, ahead.index + stride);
    } else if (piece % (32 * Pieces::kPerPage) == 0) {
      ahead.entry = ahead.later;
      ahead.read_on(a, piece / Pieces::kPerPage + 32 + lane);
    }
  }
  // Pages that this step did not write are asked for before the kernel that wrote the newest has
  // ended.
  __device__ __forceinline__ void start() {
    const std::uint32_t first = ahead.pages == 0 ? 0 : ahead.first_page();
    const std::uint32_t old_pages =
        ahead.pages == 0 ? 0 : min(ahead.pages, max(ahead.item.past / kCudaPage, first) - first);
    const std::uint32_t early = min(std::uint32_t{kStages}, Pieces::kPerPage * old_pages);
    for (std::uint32_t i = 0; i < early; ++i) ask();
    wait_for_previous();
    for (std::uint32_t i = early; i < kStages; ++i) ask();
  }
  __device__ __forceinline__ std::uint32_t arrived() {
    barrier_wait(bars + 8 * (used % kStages), (used / kStages) & 1);
    return ring + used++ % kStages * Pieces::kBytes;
  }
  __device__ __forceinline__ void done() {  // with the piece that arrived last
    __syncwarp();
    ask();
  }
};

// A row's result, split after split. It is touched so rarely that it stays in shared memory.
template <int D>
struct Row {
  static constexpr std::size_t kBytes = D / 8 * 32 * sizeof(float2);  // of a warp
  float2* out;                                                        // [D / 8][lane], this lane's
  float max = kLowest, sum = 0;
  bool empty = true;

  __device__ __forceinline__ void take(Softmax<D, 8>& split) {
    split.finish();
    float mine, its;
    merge_factors(max, sum, split.max[0], split.sum[0], mine, its);
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float2 before = empty ? make_float2(0, 0) : out[n * 32];
      out[n * 32] = make_float2(__fmaf_rn(split.out[n][0], its, before.x * mine),
                                __fmaf_rn(split.out[n][1], its, before.y * mine));
    }
    empty = false;
    split.clear();
  }

  // The row is done (or the rows: each lane has a query head of one of them): its output, or the
  // partial of its one split, which `split` still holds.
  __device__ __forceinline__ void store(const AttendArgs& a, const Work& now, std::uint32_t lane,
                                        Softmax<D, 8>& split, std::uint32_t rows = 1) {
    const std::uint32_t t = lane % 4, heads = a.query_heads / a.kv_heads;
    const std::uint32_t of = lane / 4 / heads, g = lane / 4 % heads;  // row, and head of it
    const AttendItem& item = now.item;
    if (item.partial == kNoPartial) {
      take(split);
      float x[D / 8][2];
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        x[n][0] = __fdiv_rn(out[n * 32].x, sum), x[n][1] = __fdiv_rn(out[n * 32].y, sum);
      if (a.rotated) rotate(x, lane);
      if (of >= rows) return;
      bf16* to = static_cast<bf16*>(a.output);
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        const std::uint32_t k = (now.head * heads + g) * D + n * 8 + 2 * t;
        *reinterpret_cast<std::uint32_t*>(
            to + activation_at(a.rows, a.query_heads * D, item.row + of, k)) =
            pack_bf16(x[n][0], x[n][1]);
      }
    } else {
      split.finish();
      if (of >= rows) return;
      const std::size_t at = item.partial + std::size_t{of} * item.partial_stride;
      float* to = a.partials + (at * a.kv_heads + now.head) * partial_floats(heads, D);
      if (t == 0) to[g] = split.max[0], to[heads + g] = split.sum[0];
#pragma unroll
      for (int n = 0; n < D / 8; ++n)
        *reinterpret_cast<float2*>(to + 2 * heads + g * D + n * 8 + 2 * t) =
            make_float2(split.out[n][0], split.out[n][1]);
    }
  }
};

// Warps of a block, each with a ring of `pieces` and a row: as many as were best on Hopper, or as fit
// any GPU with two pieces each.
template <class Pieces, int D, bool kForHopper, int kHopperWarps, int kHopperStages>
struct DecodeShape {
  static constexpr int kStages = kForHopper ? kHopperStages : 2;
  static constexpr std::size_t kWarpBytes = kStages * Pieces::kBytes + Row<D>::kBytes;
  static constexpr int kWarps = kForHopper                          ? kHopperWarps
                                : 8 * kWarpBytes <= kSharedAnywhere ? 8
                                : 4 * kWarpBytes <= kSharedAnywhere ? 4
                                                                    : 2;
  static constexpr std::size_t kBytes = kWarps * kWarpBytes;
  static_assert(kForHopper || kBytes <= kSharedAnywhere);
};

}  // namespace quire::cuda
