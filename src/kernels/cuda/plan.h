// kernels/cuda/plan.h - a step's attention on the GPU, cut into items. Host code; no device needed.
//
// A sequence with one row is decoded: a warp per item and KV head. Others are prefilled in tiles: a
// block of threads per item and KV head. Over sealed pages every row is decoded. Neighbouring
// decoded rows that begin with the same blocks (Engine::group_by_prefix makes them neighbours) read
// these blocks together, as the rows of a tile, and the rest alone. How a row is cut changes no bit
// of its result (kernels/cuda/api.h), so the cut serves balance alone. One plan serves all layers
// of a group.
//
//   plan_cuda_attention(view, {.query_heads = 32, .kv_heads = 8, .head_dim = 128,
//                              .multiprocessors = 132}, plan);
#pragma once

#include <vector>

#include "kernels/cuda/api.h"
#include "kernels/kv_view.h"

namespace quire {

struct CudaPlanShape {
  std::uint32_t query_heads, kv_heads, head_dim, multiprocessors;
  bool tiles = true;  // false: there is no kernel for them, rows are decoded one by one
  CudaKvFormat format = CudaKvFormat::bf16;
  std::uint32_t recent_blocks = 0, sink_blocks = 0;  // of sealed formats
  const KvView* rows = nullptr;                      // theirs: where rows as written are
};

struct CudaPlan {
  std::vector<std::uint32_t> tables;      // blocks of all sequences, one after the other
  std::vector<std::uint32_t> row_tables;  // the same for the rows of sealed formats
  std::vector<SealPair> seals;            // blocks that this step fills
  std::vector<AttendItem> items;          // decode's first, then the tiles; longest first
  std::uint32_t decode_count = 0;
  std::vector<AttendMerge> merges;  // by row
  std::uint32_t partials = 0;       // room for what items leave; 0: nothing is to be merged
  // Sequences of one row each, `count` of them from `first` on, whose first `splits` are the same
  // blocks. Their partials begin at `partial`, `stride` from one row to the next.
  struct Shared {
    std::uint32_t first, count, splits, partial, stride;
  };
  std::vector<Shared> shared;
  struct Tile {  // `together` of its splits take as long as one of a full tile
    std::uint32_t splits, together;
  };
  std::vector<Tile> tiles;  // scratch
};

// Rows of an item with what they see as its slots: cut at splits, `each` of them to an item that
// leaves partials, or, if that is 0, one item that leaves nothing to merge.
void add_attention(CudaPlan& plan, AttendItem rows, std::uint32_t split, std::uint32_t each);

// Keeps the vectors' memory: a step allocates nothing once they have grown.
void plan_cuda_attention(const KvView& view, const CudaPlanShape& shape, CudaPlan& plan);

}  // namespace quire
