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
    find_shared();
    weigh();
    for (const bool decode : {true, false}) {
      const std::size_t before = plan_.items.size();
      std::uint32_t table = 0;
      for (std::uint32_t s = 0; s < view_.sequence_count; ++s) {
        const KvSequenceView& q = view_.sequences[s];
        if (q.row_count == 0) continue;
        if (decode) add_tables(s);
        const std::uint32_t step = decode ? 1 : tile_rows_;
        if (!decode) add_shared(s, table);
        if (decode && shared_of(s)) {
          add_rest(s, table);
          table += blocks_of(q);
          continue;
        }
        if (decode && sealed())
          each_sealed(q, [&](std::uint32_t r, std::uint32_t count) {
            add_sealed(rows_of(q, table, r, count));
          });
        for (std::uint32_t r = 0; !sealed() && is_decoded(q) == decode && r < q.row_count;
             r += step) {
          const AttendItem item = rows_of(q, table, r, std::min(step, q.row_count - r));
          const std::uint32_t splits = (item.end - 1) / split_ + 1 - item.begin / split_;
          const bool whole =
              splits <= (decode ? 1 : tile_splits_) || (decode ? stays_whole(item) : many_tiles_);
          add_attention(plan_, item, split_,
                        whole    ? 0
                        : decode ? 1
                                 : splits_of_item(splits, item.row_count));
        }
        table += blocks_of(q);
      }
      const auto work = [&](const AttendItem& item) {
        const bool slow = decode || item.partial == kNoPartial;
        return (item.end - item.begin) / (slow ? 1 : together(item.row_count));
      };
      std::stable_sort(plan_.items.begin() + static_cast<std::ptrdiff_t>(before), plan_.items.end(),
                       [&](const AttendItem& a, const AttendItem& b) { return work(a) > work(b); });
      if (decode) plan_.decode_count = static_cast<std::uint32_t>(plan_.items.size());
    }
  }

 private:
  bool sealed() const { return shape_.format != CudaKvFormat::bf16; }
  bool is_decoded(const KvSequenceView& q) const {
    return q.row_count == 1 || !shape_.tiles || sealed();
  }
  // Few pairs make short work of a split, where splits leave partials.
  std::uint32_t together(std::uint32_t rows) const {
    return rows * (shape_.query_heads / shape_.kv_heads) <= kCudaFewPairs ? 4 : 1;
  }
  // Of a tile that is cut. Items of few pairs are evenly long, as their splits go side by side.
  std::uint32_t splits_of_item(std::uint32_t splits, std::uint32_t rows) const {
    const std::uint32_t once = together(rows), most = once * tile_splits_;
    const std::uint32_t items = (splits + most - 1) / most;
    return once == 1 ? most : (splits + items - 1) / items;
  }
  std::uint32_t first_visible(std::uint32_t position) const {
    return view_.window != 0 ? position + 1 - std::min(position + 1, view_.window) : 0;
  }
  static std::uint32_t blocks_of(const KvSequenceView& q) {
    return (q.past + q.row_count + kCudaPage - 1) / kCudaPage;
  }

  // Splits at the start of two sequences that are the same blocks, and not being written.
  std::uint32_t common_splits(const KvSequenceView& a, const KvSequenceView& b) const {
    const std::uint32_t most = std::min(a.past, b.past) / split_, blocks = split_ / kCudaPage;
    std::uint32_t n = 0;
    while (n < most &&
           std::equal(a.blocks + n * blocks, a.blocks + (n + 1) * blocks, b.blocks + n * blocks))
      ++n;
    return n;
  }

  // A tile takes about as long as one row does alone, so a few rows are enough. A run grows as long
  // as more is saved, and ends before a row that has much more in common with the next one.
  void find_shared() {
    plan_.shared.clear();
    constexpr std::uint32_t kRowsMin = 4;
    if (!shape_.tiles || sealed() || view_.window != 0) return;
    for (std::uint32_t s = 0; s + 1 < view_.sequence_count;) {
      const std::uint32_t first = s++;
      std::uint32_t splits = 0;
      for (; s < view_.sequence_count; ++s) {
        const KvSequenceView &a = view_.sequences[s - 1], &b = view_.sequences[s];
        if (a.row_count != 1 || b.row_count != 1 || b.first_row != a.first_row + 1) break;
        const std::uint32_t both = common_splits(a, b), before = s - first - 1,
                            now = before == 0 ? both : std::min(splits, both);
        if (before > 1 && both > 2 * splits) {
          --s;
          break;
        }
        if (now == 0 || now * (before + 1) < splits * before) break;
        splits = now;
      }
      if (s - first < kRowsMin || splits == 0) {
        s = first + 1;
        continue;
      }
      std::uint32_t stride = 0;
      for (std::uint32_t i = first; i < s; ++i)
        stride = std::max(stride, view_.sequences[i].past / split_ + 1);
      plan_.shared.push_back({first, s - first, splits, plan_.partials, stride});
      plan_.partials += stride * (s - first);
    }
  }
  const CudaPlan::Shared* shared_of(std::uint32_t s) const {
    const auto after = std::ranges::upper_bound(plan_.shared, s, {}, &CudaPlan::Shared::first);
    if (after == plan_.shared.begin()) return nullptr;
    const CudaPlan::Shared& group = *(after - 1);
    return s < group.first + group.count ? &group : nullptr;
  }
  // The blocks that sequence s and those after it begin with, if a tile of them begins with it.
  void add_shared(std::uint32_t s, std::uint32_t table) {
    const CudaPlan::Shared* group = shared_of(s);
    if (!group || (s - group->first) % tile_rows_ != 0) return;
    const std::uint32_t row = s - group->first, count = std::min(tile_rows_, group->count - row);
    const std::uint32_t each = many_tiles_ ? group->splits : splits_of_item(group->splits, count);
    AttendItem item = rows_of(view_.sequences[s], table, 0, count);
    item.position = item.past = group->splits * split_;  // everything is before the first of them
    item.partial_stride = static_cast<std::uint16_t>(group->stride);
    for (std::uint32_t i = 0; i < group->splits; i += each) {
      item.begin = i * split_;
      item.end = std::min(group->splits, i + each) * split_;
      item.partial = group->partial + row * group->stride + i;
      plan_.items.push_back(item);
    }
  }
  // What comes after them, split by split.
  void add_rest(std::uint32_t s, std::uint32_t table) {
    const CudaPlan::Shared& group = *shared_of(s);
    AttendItem item = rows_of(view_.sequences[s], table, 0, 1);
    const std::uint32_t end = item.end, splits = (end - 1) / split_ + 1,
                        partial = group.partial + (s - group.first) * group.stride;
    for (std::uint32_t i = group.splits; i < splits; ++i) {
      item.begin = i * split_;
      item.end = std::min(end, (i + 1) * split_);
      item.partial = partial + i;
      plan_.items.push_back(item);
    }
    plan_.merges[item.row] = {item.row, partial, splits};
  }

  // How much there is to do decides how it is cut.
  void weigh() {
    std::uint64_t tiles = 0;
    std::uint32_t rows = 0;
    tile_rows_ = kCudaTile / (shape_.query_heads / shape_.kv_heads);
    for (std::uint32_t s = 0; s < view_.sequence_count; ++s) {
      const KvSequenceView& q = view_.sequences[s];
      rows = std::max(rows, q.first_row + q.row_count);
      const auto count = [&](std::uint32_t r, std::uint32_t) {
        ++decode_rows_;
        decode_slots_ += q.past + r + 1 - first_visible(q.past + r);
      };
      if (sealed()) each_sealed(q, count);
      for (std::uint32_t r = 0; !sealed() && is_decoded(q) && r < q.row_count; ++r) count(r, 1);
    }
    each_tile([&](std::uint32_t, std::uint32_t) { ++tiles; });
    plan_.merges.resize(rows);
    const std::uint64_t page = sealed() ? sealed_page_bytes(shape_.format, shape_.head_dim)
                                        : std::uint64_t{kCudaPage} * shape_.head_dim * 4;
    many_rows_ = cuda_rows_stay_whole(decode_rows_ * shape_.kv_heads, page, shape_.format,
                                      shape_.multiprocessors);
    many_tiles_ = tiles * shape_.kv_heads >= shape_.multiprocessors;
    if (!many_tiles_) weigh_tiles();
  }
  // So many splits to an item that all are done soonest: items of that many run first, one to a
  // multiprocessor, and what is left of tiles on the others meanwhile.
  void weigh_tiles() {
    std::uint64_t soonest = ~std::uint64_t{0};
    std::uint32_t longest = 0;
    plan_.tiles.clear();
    each_tile([&](std::uint32_t splits, std::uint32_t rows) {
      plan_.tiles.push_back({splits, together(rows)});
      longest = std::max(longest, splits);
    });
    for (std::uint32_t each = 1; each <= longest; ++each) {
      std::uint64_t full = 0, left = 0, most_left = 0;
      for (const CudaPlan::Tile& tile : plan_.tiles) {
        if (const std::uint32_t some = each * tile.together; tile.together > 1) {
          full += (tile.splits + some - 1) / some * shape_.kv_heads;
          continue;
        }
        full += tile.splits / each * shape_.kv_heads;
        left += tile.splits % each * shape_.kv_heads;
        most_left = std::max<std::uint64_t>(most_left, tile.splits % each);
      }
      if (full > shape_.multiprocessors) continue;
      const std::uint64_t others = shape_.multiprocessors - full;
      const std::uint64_t then = left == 0     ? 0
                                 : others == 0 ? each + most_left
                                               : std::max(most_left, (left + others - 1) / others);
      const std::uint64_t done = std::max<std::uint64_t>(full > 0 ? each : 0, then);
      if (done >= soonest) continue;
      soonest = done;
      tile_splits_ = each;
    }
  }
  // Rows of one block read the same pages, unless a window's edge is among them.
  template <class F>
  void each_sealed(const KvSequenceView& q, F f) const {
    const std::uint32_t most =
        view_.window != 0 ? 1 : kSealedColumns / (shape_.query_heads / shape_.kv_heads);
    for (std::uint32_t r = 0, count; r < q.row_count; r += count) {
      count = std::min({most, q.row_count - r, kCudaPage - (q.past + r) % kCudaPage});
      f(r, count);
    }
  }
  template <class F>
  void each_tile(F f) const {  // with its number of splits, and of rows
    for (const CudaPlan::Shared& group : plan_.shared)
      for (std::uint32_t row = 0; row < group.count; row += tile_rows_)
        f(group.splits, std::min(tile_rows_, group.count - row));
    for (std::uint32_t s = 0; s < view_.sequence_count; ++s) {
      const KvSequenceView& q = view_.sequences[s];
      for (std::uint32_t r = 0; !is_decoded(q) && r < q.row_count; r += tile_rows_) {
        const std::uint32_t rows = std::min(tile_rows_, q.row_count - r);
        f((q.past + r + rows - 1) / split_ + 1 - first_visible(q.past + r) / split_, rows);
      }
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

  // The sealed slots, then the rows as a split of their own.
  void add_sealed(const AttendItem& rows) {
    const RowPages pages =
        cuda_row_pages(rows.position, view_.window, shape_.recent_blocks, shape_.sink_blocks);
    AttendItem item = rows;
    const std::uint32_t count = rows.row_count;
    item.end = pages.first * kCudaPage;
    item.begin = std::min(item.end, std::max(rows.begin, pages.sinks * kCudaPage));
    item.row_count = sealed_row_count(count, pages.count);
    const std::uint32_t splits = (item.end + split_ - 1) / split_ - item.begin / split_;
    if (stays_whole(rows) || splits <= 1) {
      plan_.items.push_back(item);
      for (std::uint32_t r = 0; r < count; ++r)
        plan_.merges[rows.row + r] = {rows.row + r, plan_.partials, 0};
      return;
    }
    item.partial_stride = static_cast<std::uint16_t>(splits + 1);
    item.partial = plan_.partials;
    item.row_count = sealed_row_count(count, 0);
    const std::uint32_t end = item.end;
    for (std::uint32_t at = item.begin; at < end; at = item.end, ++item.partial) {
      item.begin = at;
      item.end = std::min(end, (at / split_ + 1) * split_);
      plan_.items.push_back(item);
    }
    item.begin = item.end = end;
    item.row_count = sealed_row_count(count, pages.count);
    plan_.items.push_back(item);
    for (std::uint32_t r = 0; r < count; ++r) {
      plan_.merges[rows.row + r] = {rows.row + r, plan_.partials, splits + 1};
      plan_.partials += splits + 1;
    }
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

void add_attention(CudaPlan& plan, AttendItem rows, std::uint32_t split, std::uint32_t each) {
  const std::uint32_t from = rows.begin / split, to = (rows.end - 1) / split + 1;
  rows.partial_stride = static_cast<std::uint16_t>(to - from);
  if (plan.merges.size() < rows.row + rows.row_count) plan.merges.resize(rows.row + rows.row_count);
  if (each == 0) plan.items.push_back(rows);
  for (std::uint32_t i = from; each != 0 && i < to; i += each) {
    plan.items.push_back(rows);
    AttendItem& item = plan.items.back();
    item.begin = std::max(rows.begin, i * split);
    item.end = std::min(rows.end, (i + each) * split);
    item.partial = plan.partials + i - from;
  }
  for (std::uint32_t r = 0; r < rows.row_count; ++r) {
    plan.merges[rows.row + r] = {rows.row + r, plan.partials, each != 0 ? to - from : 0};
    if (each != 0) plan.partials += to - from;
  }
}

void plan_cuda_attention(const KvView& view, const CudaPlanShape& shape, CudaPlan& plan) {
  Planner(view, shape, plan).run();
}

}  // namespace quire
