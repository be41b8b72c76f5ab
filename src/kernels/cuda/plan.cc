#include "kernels/cuda/plan.h"

#include <algorithm>

namespace quire {
namespace {

std::uint32_t first_visible(const KvView& view, std::uint32_t position) {
  const std::uint32_t end = position + 1;
  return view.window != 0 ? end - std::min(end, view.window) : 0;
}

}  // namespace

void plan_cuda_attention(const KvView& view, const CudaPlanShape& shape, CudaPlan& plan) {
  plan.tables.clear();
  plan.items.clear();
  plan.merges.clear();
  plan.partials = 0;
  const std::uint32_t split = cuda_split(shape.head_dim);
  const std::uint32_t tile_rows =
      shape.tiles ? kCudaTile / (shape.query_heads / shape.kv_heads) : 1;
  const auto is_decoded = [&](const KvSequenceView& q) { return q.row_count == 1 || !shape.tiles; };
  std::uint64_t decode_rows = 0, decode_slots = 0, tiles = 0;
  for (std::uint32_t s = 0; s < view.sequence_count; ++s) {
    const KvSequenceView& q = view.sequences[s];
    if (!is_decoded(q)) tiles += (q.row_count + tile_rows - 1) / tile_rows;
    for (std::uint32_t r = 0; is_decoded(q) && r < q.row_count; ++r, ++decode_rows)
      decode_slots += q.past + r + 1 - first_visible(view, q.past + r);
  }
  const bool many_rows =
      cuda_rows_stay_whole(decode_rows * shape.kv_heads, kCudaPage * shape.head_dim * 4,
                           CudaKvFormat::bf16, shape.multiprocessors);
  const bool many_tiles = tiles * shape.kv_heads >= shape.multiprocessors;

  const auto add = [&](const AttendItem& rows, bool whole) {
    const std::uint32_t from = rows.begin / split, to = (rows.end - 1) / split + 1;
    const bool cut = !whole && to - from > 1;
    AttendItem item = rows;
    item.partial_stride = static_cast<std::uint16_t>(to - from);
    for (std::uint32_t i = from; cut && i < to; ++i) {
      item.begin = std::max(rows.begin, i * split);
      item.end = std::min(rows.end, (i + 1) * split);
      item.partial = plan.partials + i - from;
      plan.items.push_back(item);
    }
    if (!cut) plan.items.push_back(item);
    for (std::uint32_t r = 0; r < rows.row_count; ++r) {
      plan.merges[rows.row + r] = {rows.row + r, plan.partials, cut ? to - from : 0};
      if (cut) plan.partials += to - from;
    }
  };
  const auto longest_first = [&](std::size_t from) {
    std::stable_sort(
        plan.items.begin() + static_cast<std::ptrdiff_t>(from), plan.items.end(),
        [](const AttendItem& a, const AttendItem& b) { return a.end - a.begin > b.end - b.begin; });
  };

  std::uint32_t rows = 0;
  for (std::uint32_t s = 0; s < view.sequence_count; ++s)
    rows = std::max(rows, view.sequences[s].first_row + view.sequences[s].row_count);
  plan.merges.resize(rows);
  for (const bool decode : {true, false}) {
    const std::size_t before = plan.items.size();
    std::uint32_t table = 0;
    for (std::uint32_t s = 0; s < view.sequence_count; ++s) {
      const KvSequenceView& q = view.sequences[s];
      if (q.row_count == 0) continue;
      const std::uint32_t blocks = (q.past + q.row_count + kCudaPage - 1) / kCudaPage;
      if (decode)
        for (std::uint32_t b = 0; b < blocks; ++b)
          plan.tables.push_back(static_cast<std::uint32_t>(q.blocks[b]));
      for (std::uint32_t r = 0; is_decoded(q) == decode && r < q.row_count; r += tile_rows) {
        const std::uint32_t count = std::min(tile_rows, q.row_count - r), position = q.past + r;
        const AttendItem item{.table = table,
                              .row = q.first_row + r,
                              .position = position,
                              .past = q.past,
                              .begin = first_visible(view, position),
                              .end = position + count,
                              .partial = kNoPartial,
                              .row_count = static_cast<std::uint16_t>(count),
                              .partial_stride = 0};
        // A row much longer than the others would keep everybody waiting.
        const bool whole = decode
                               ? many_rows && std::uint64_t{item.end - item.begin} * decode_rows <=
                                                  decode_slots * 3 / 2
                               : many_tiles;
        add(item, whole);
      }
      table += blocks;
    }
    longest_first(before);
    if (decode) plan.decode_count = static_cast<std::uint32_t>(plan.items.size());
  }
}

}  // namespace quire
