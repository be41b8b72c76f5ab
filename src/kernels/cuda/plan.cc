#include "kernels/cuda/plan.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/sealed.h"

namespace quire {
namespace {

class Planner {
 public:
  Planner(const KvView& view, const CudaPlanShape& shape, CudaPlan& plan)
      : view_(view), shape_(shape), plan_(plan), split_(cuda_split(shape.head_dim)) {}

  void run() {
    plan_.tables.clear();
    plan_.row_tables.clear();
    plan_.seals.clear();
    plan_.items.clear();
    plan_.merges.clear();
    plan_.partials = 0;
    weigh();
    for (const bool decode : {true, false}) {
      const std::size_t before = plan_.items.size();
      std::uint32_t table = 0;
      for (std::uint32_t s = 0; s < view_.sequence_count; ++s) {
        const KvSequenceView& q = view_.sequences[s];
        if (q.row_count == 0) continue;
        if (decode) add_tables(s);
        const std::uint32_t step = decode ? 1 : tile_rows_;
        for (std::uint32_t r = 0; is_decoded(q) == decode && r < q.row_count; r += step) {
          const AttendItem item = rows_of(q, table, r, std::min(step, q.row_count - r));
          if (sealed())
            add_sealed(item);
          else
            add(item, decode ? stays_whole(item) : many_tiles_, decode ? 1 : tile_splits_);
        }
        table += blocks_of(q);
      }
      std::stable_sort(plan_.items.begin() + static_cast<std::ptrdiff_t>(before), plan_.items.end(),
                       [](const AttendItem& a, const AttendItem& b) {
                         return a.end - a.begin > b.end - b.begin;
                       });
      if (decode) plan_.decode_count = static_cast<std::uint32_t>(plan_.items.size());
    }
  }

 private:
  bool sealed() const { return shape_.format != CudaKvFormat::bf16; }
  bool is_decoded(const KvSequenceView& q) const {
    return q.row_count == 1 || !shape_.tiles || sealed();
  }
  std::uint32_t first_visible(std::uint32_t position) const {
    return view_.window != 0 ? position + 1 - std::min(position + 1, view_.window) : 0;
  }
  static std::uint32_t blocks_of(const KvSequenceView& q) {
    return (q.past + q.row_count + kCudaPage - 1) / kCudaPage;
  }

  // How much there is to do decides how it is cut.
  void weigh() {
    std::uint64_t tiles = 0;
    std::uint32_t rows = 0;
    tile_rows_ = kCudaTile / (shape_.query_heads / shape_.kv_heads);
    for (std::uint32_t s = 0; s < view_.sequence_count; ++s) {
      const KvSequenceView& q = view_.sequences[s];
      rows = std::max(rows, q.first_row + q.row_count);
      for (std::uint32_t r = 0; is_decoded(q) && r < q.row_count; ++r, ++decode_rows_)
        decode_slots_ += q.past + r + 1 - first_visible(q.past + r);
    }
    each_tile([&](std::uint32_t) { ++tiles; });
    plan_.merges.resize(rows);
    const std::uint64_t page = sealed() ? sealed_page_bytes(shape_.format, shape_.head_dim)
                                        : std::uint64_t{kCudaPage} * shape_.head_dim * 4;
    many_rows_ = cuda_rows_stay_whole(decode_rows_ * shape_.kv_heads, page, shape_.format,
                                      shape_.multiprocessors);
    many_tiles_ = tiles * shape_.kv_heads >= shape_.multiprocessors;
    // As few splits to an item as make no more items than run at a time.
    const auto items = [&] {
      std::uint64_t n = 0;
      each_tile([&](std::uint32_t of_tile) { n += (of_tile + tile_splits_ - 1) / tile_splits_; });
      return n * shape_.kv_heads;
    };
    for (tile_splits_ = 1; !many_tiles_ && items() > shape_.multiprocessors;) ++tile_splits_;
  }
  template <class F>
  void each_tile(F f) const {  // with its number of splits
    for (std::uint32_t s = 0; s < view_.sequence_count; ++s) {
      const KvSequenceView& q = view_.sequences[s];
      for (std::uint32_t r = 0; !is_decoded(q) && r < q.row_count; r += tile_rows_)
        f((q.past + std::min(q.row_count, r + tile_rows_) - 1) / split_ + 1 -
          first_visible(q.past + r) / split_);
    }
  }
  // A row much longer than the others would keep everybody waiting.
  bool stays_whole(const AttendItem& item) const {
    return many_rows_ &&
           std::uint64_t{item.end - item.begin} * decode_rows_ <= decode_slots_ * 3 / 2;
  }

  void add_tables(std::uint32_t s) {
    const KvSequenceView& q = view_.sequences[s];
    const std::uint32_t blocks = blocks_of(q), full = (q.past + q.row_count) / kCudaPage;
    for (std::uint32_t b = 0; b < blocks; ++b)
      plan_.tables.push_back(sealed() && b >= full ? 0 : static_cast<std::uint32_t>(q.blocks[b]));
    if (!sealed()) return;
    const ArenaOffset* rows = shape_.rows->sequences[s].blocks;
    for (std::uint32_t b = 0; b < blocks; ++b)
      plan_.row_tables.push_back(static_cast<std::uint32_t>(rows[b]));
    for (std::uint32_t b = q.past / kCudaPage; b < full; ++b) {
      CHECK(rows[b] != kNoBlock);  // a device's recent group is never for open blocks only
      plan_.seals.push_back(
          {static_cast<std::uint32_t>(rows[b]), static_cast<std::uint32_t>(q.blocks[b])});
    }
  }

  AttendItem rows_of(const KvSequenceView& q, std::uint32_t table, std::uint32_t row,
                     std::uint32_t count) const {
    const std::uint32_t position = q.past + row;
    return {.table = table,
            .row = q.first_row + row,
            .position = position,
            .past = q.past,
            .begin = first_visible(position),
            .end = position + count,
            .partial = kNoPartial,
            .row_count = static_cast<std::uint16_t>(count),
            .partial_stride = 0};
  }

  void add(const AttendItem& rows, bool whole, std::uint32_t splits_each) {
    const std::uint32_t from = rows.begin / split_, to = (rows.end - 1) / split_ + 1;
    const bool cut = !whole && to - from > splits_each;
    AttendItem item = rows;
    item.partial_stride = static_cast<std::uint16_t>(to - from);
    for (std::uint32_t i = from; cut && i < to; i += splits_each) {
      item.begin = std::max(rows.begin, i * split_);
      item.end = std::min(rows.end, (i + splits_each) * split_);
      item.partial = plan_.partials + i - from;
      plan_.items.push_back(item);
    }
    if (!cut) plan_.items.push_back(item);
    for (std::uint32_t r = 0; r < rows.row_count; ++r) {
      plan_.merges[rows.row + r] = {rows.row + r, plan_.partials, cut ? to - from : 0};
      if (cut) plan_.partials += to - from;
    }
  }

  // The sealed slots, then the rows as a split of their own.
  void add_sealed(const AttendItem& row) {
    const RowPages pages =
        cuda_row_pages(row.position, view_.window, shape_.recent_blocks, shape_.sink_blocks);
    AttendItem item = row;
    item.end = pages.first * kCudaPage;
    item.begin = std::min(item.end, std::max(row.begin, pages.sinks * kCudaPage));
    item.row_count = static_cast<std::uint16_t>(pages.count);
    if (stays_whole(row) || item.begin / split_ + 1 >= (item.end + split_ - 1) / split_) {
      plan_.items.push_back(item);
      plan_.merges[row.row] = {row.row, plan_.partials, 0};
      return;
    }
    const std::uint32_t first = plan_.partials, end = item.end;
    item.row_count = 0;
    for (std::uint32_t at = item.begin; at < end; at = item.end) {
      item.begin = at;
      item.end = std::min(end, (at / split_ + 1) * split_);
      item.partial = plan_.partials++;
      plan_.items.push_back(item);
    }
    item.begin = item.end = end;
    item.partial = plan_.partials++;
    item.row_count = static_cast<std::uint16_t>(pages.count);
    plan_.items.push_back(item);
    plan_.merges[row.row] = {row.row, first, plan_.partials - first};
  }

  const KvView& view_;
  const CudaPlanShape& shape_;
  CudaPlan& plan_;
  const std::uint32_t split_;
  std::uint32_t tile_rows_ = 1, tile_splits_ = 1;
  std::uint64_t decode_rows_ = 0, decode_slots_ = 0;
  bool many_rows_ = false, many_tiles_ = false;
};

}  // namespace

void plan_cuda_attention(const KvView& view, const CudaPlanShape& shape, CudaPlan& plan) {
  Planner(view, shape, plan).run();
}

}  // namespace quire
