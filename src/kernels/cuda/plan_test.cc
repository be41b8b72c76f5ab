#include "kernels/cuda/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/random.h"

namespace quire {
namespace {

struct Sequence {
  std::uint32_t past, rows;
  std::uint32_t same = 0;  // blocks at its start that are those of the sequence before it
};

class CudaPlanTest : public testing::Test {
 protected:
  // Every row must find each slot it sees in exactly one item, in order, or in one whole item.
  void check(const std::vector<Sequence>& sequences, std::uint32_t window, CudaPlanShape shape) {
    std::vector<std::vector<ArenaOffset>> blocks;
    std::vector<KvSequenceView> views;
    std::uint32_t row = 0, next_block = 7;
    for (const Sequence& s : sequences) {
      blocks.emplace_back();
      for (std::uint32_t b = 0; b * kCudaPage < s.past + s.rows; ++b)
        blocks.back().push_back(b < s.same ? blocks[blocks.size() - 2][b]
                                           : static_cast<ArenaOffset>(next_block++));
      views.push_back({blocks.back().data(), row, s.rows, s.past});
      row += s.rows;
    }
    for (std::size_t i = 0; i < views.size(); ++i) views[i].blocks = blocks[i].data();
    const KvView view{nullptr, views.data(), static_cast<std::uint32_t>(views.size()), kCudaPage,
                      window};
    plan_cuda_attention(view, shape, plan_);

    ASSERT_EQ(plan_.merges.size(), row);
    const std::uint32_t split = cuda_split(shape.head_dim);
    std::map<std::uint32_t, std::uint32_t> partial_owner;
    std::map<std::uint32_t, std::map<std::uint32_t, std::uint32_t>> seen;  // row: begin to end
    std::set<std::uint32_t> whole;                                         // rows
    const auto work = [&](const AttendItem& item) {  // few pairs that leave partials are quick
      const bool few = item.row_count * (shape.query_heads / shape.kv_heads) <= kCudaFewPairs;
      return (item.end - item.begin) / (few && item.partial != kNoPartial ? 4 : 1);
    };
    for (std::uint32_t i = 0; i < plan_.items.size(); ++i) {
      const AttendItem& item = plan_.items[i];
      const bool decode = i < plan_.decode_count;
      EXPECT_TRUE(!decode || item.row_count == 1);
      EXPECT_LE(item.row_count * (shape.query_heads / shape.kv_heads), kCudaTile);
      EXPECT_LT(item.begin, item.end);
      if (i != 0 && i != plan_.decode_count) {
        const AttendItem& before = plan_.items[i - 1];
        if (decode)
          EXPECT_GE(before.end - before.begin, item.end - item.begin);
        else
          EXPECT_GE(work(before), work(item));
      }
      const std::uint32_t splits = (item.end - 1) / split - item.begin / split + 1;
      if (decode && item.partial != kNoPartial) {
        EXPECT_EQ(splits, 1u);
      }
      for (std::uint32_t r = 0; r < item.row_count; ++r) {
        EXPECT_TRUE(seen[item.row + r].emplace(item.begin, item.end).second);
        if (item.partial == kNoPartial) whole.insert(item.row + r);
        for (std::uint32_t s = 0; item.partial != kNoPartial && s < splits; ++s)
          EXPECT_TRUE(
              partial_owner.emplace(item.partial + r * item.partial_stride + s, item.row + r)
                  .second)
              << "two items share a partial";
      }
    }
    for (const AttendItem& item : plan_.items)
      for (std::uint32_t r = 0; item.partial != kNoPartial && r < item.row_count; ++r)
        EXPECT_EQ(item.partial + r * item.partial_stride - plan_.merges[item.row + r].first,
                  item.begin / split - seen[item.row + r].begin()->first / split);
    // Rows that share are as far apart as the longest of them needs.
    if (plan_.shared.empty()) {
      EXPECT_EQ(partial_owner.size(), plan_.partials);
    }
    for (const auto& [partial, owner] : partial_owner) EXPECT_LT(partial, plan_.partials);
    for (const KvSequenceView& q : views)
      for (std::uint32_t r = 0; r < q.row_count; ++r) {
        const std::uint32_t end = q.past + r + 1, begin = window ? end - std::min(end, window) : 0;
        std::uint32_t reached = seen[q.first_row + r].begin()->first;
        EXPECT_LE(reached, begin);
        std::uint32_t splits = 0;
        for (const auto& [from, to] : seen[q.first_row + r]) {
          EXPECT_EQ(from, reached) << "a gap or an overlap";
          reached = to;
          splits += (to - 1) / split - from / split + 1;
        }
        EXPECT_GE(reached, end);
        const AttendMerge& m = plan_.merges[q.first_row + r];
        EXPECT_EQ(m.count, whole.contains(q.first_row + r) ? 0 : splits);
        EXPECT_TRUE(m.count != 0 || seen[q.first_row + r].size() == 1);
        EXPECT_EQ(m.row, q.first_row + r);
      }
    for (const AttendItem& item : plan_.items)  // what each row of it reads is its own
      for (std::uint32_t r = 0; r < item.row_count; ++r)
        for (std::size_t i = 0; i < views.size(); ++i)
          for (std::uint32_t b = item.begin / kCudaPage;
               item.row + r >= views[i].first_row &&
               item.row + r < views[i].first_row + views[i].row_count && b * kCudaPage < item.end;
               ++b)
            EXPECT_EQ(plan_.tables[item.table + b], static_cast<std::uint32_t>(blocks[i][b]));
    for (const AttendItem& item : plan_.items)  // the table is the first row's sequence's
      for (std::size_t i = 0; i < views.size(); ++i) {
        if (item.row < views[i].first_row || item.row >= views[i].first_row + views[i].row_count)
          continue;
        for (std::size_t b = 0; b < blocks[i].size(); ++b)
          EXPECT_EQ(plan_.tables[item.table + b], static_cast<std::uint32_t>(blocks[i][b]));
      }
  }

  CudaPlan plan_;
};

TEST_F(CudaPlanTest, EveryRowSeesItsSlotsOnce) {
  const CudaPlanShape large{32, 8, 128, 132}, small{9, 3, 64, 132};
  for (const CudaPlanShape& shape : {large, small}) {
    check({{4000, 1}, {10, 1}, {0, 1}}, 0, shape);
    check({{0, 300}, {1000, 68}, {77, 1}}, 0, shape);
    check({{5000, 40}, {700, 1}, {30, 2}}, 512, shape);
    check(std::vector<Sequence>(200, {3000, 1}), 0, shape);
    Random random(3);
    for (int i = 0; i < 50; ++i) {
      std::vector<Sequence> some;
      for (std::uint64_t n = 1 + random.below(12); n > 0; --n)
        some.push_back(
            {static_cast<std::uint32_t>(random.below(3000)),
             random.chance(0.5) ? 1 : 1 + static_cast<std::uint32_t>(random.below(200))});
      check(some, random.chance(0.5) ? 0 : 1 + static_cast<std::uint32_t>(random.below(900)),
            shape);
    }
  }
}

TEST_F(CudaPlanTest, RowsWithTheSamePrefixReadItTogether) {
  const CudaPlanShape large{32, 8, 128, 132}, small{9, 3, 64, 132};
  std::vector<Sequence> same(64, {8190, 1, 250});
  same[0].same = 0;
  check(same, 0, large);
  ASSERT_EQ(plan_.shared.size(), 1u);
  EXPECT_EQ(plan_.shared[0].splits, 15u);
  EXPECT_EQ(plan_.decode_count, 64u);  // the last split of each
  EXPECT_LE((plan_.items.size() - plan_.decode_count) * 8, 132u);
  same.resize(3);
  check(same, 0, large);
  EXPECT_TRUE(plan_.shared.empty()) << "too few to be worth it";
  // Two families after one another; the second has a longer prefix in common.
  std::vector<Sequence> two(8, {1000, 1, 20});
  two[0].same = 0;
  for (int i = 0; i < 8; ++i) two.push_back({3000, 1, i == 0 ? 16u : 90u});
  check(two, 0, large);
  ASSERT_EQ(plan_.shared.size(), 2u);
  EXPECT_EQ(plan_.shared[0].splits, 1u);
  EXPECT_EQ(plan_.shared[1].splits, 5u);
  Random random(5);
  std::size_t found = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<Sequence> some;
    for (std::uint64_t n = 1 + random.below(40); n > 0; --n) {
      const bool one = random.chance(0.9);
      const std::uint32_t past = static_cast<std::uint32_t>(random.below(4000)),
                          before = some.empty() ? 0 : some.back().past / kCudaPage;
      some.push_back({past, one ? 1 : 2 + static_cast<std::uint32_t>(random.below(60)),
                      random.chance(0.8) ? std::min(past / kCudaPage, before) : 0});
    }
    check(some, 0, random.chance(0.5) ? large : small);
    found += plan_.shared.size();
  }
  EXPECT_GT(found, 30u);
}

TEST_F(CudaPlanTest, RowsStayWholeWhereThereAreEnough) {
  check(std::vector<Sequence>(128, {2000, 1}), 0, {32, 8, 128, 132});
  EXPECT_EQ(plan_.partials, 0u);
  check({{32000, 1}}, 0, {32, 8, 128, 132});
  EXPECT_EQ(plan_.items.size(), 63u);
  std::vector<Sequence> uneven(128, {500, 1});
  uneven[5].past = 30000;  // one straggler is cut, the others are not
  check(uneven, 0, {32, 8, 128, 132});
  EXPECT_EQ(plan_.items.size(), 127u + 59u);
}

// Each block that is free takes the next item: nobody works much longer than all do on average.
TEST_F(CudaPlanTest, FewTilesOverLongContextsAreSharedEvenly) {
  for (const std::uint32_t past : {32700u, 40000u, 100000u, 9000u}) {
    check({{past, 68}}, 0, {32, 8, 128, 132});
    std::vector<std::uint32_t> busy(132);
    std::uint32_t all = 0;
    for (const AttendItem& item : plan_.items)
      for (int head = 0; head < 8; ++head) {
        const std::uint32_t splits = (item.end - 1) / 512 + 1 - item.begin / 512,
                            work = item.row_count <= 4 ? (splits + 3) / 4 : splits;
        *std::ranges::min_element(busy) += work;
        all += work;
      }
    EXPECT_LE(std::ranges::max(busy), (all + 131) / 132 + all / 132 / 16) << past;
  }
}

// Sealed blocks and rows together must be what a row sees, the sealed ones cut at splits only.
TEST_F(CudaPlanTest, RowsOfSealedGroupsReadEachBlockInOneWay) {
  Random random(4);
  for (int round = 0; round < 100; ++round) {
    const std::uint32_t window =
        random.chance(0.5) ? 0 : 1 + static_cast<std::uint32_t>(random.below(900));
    CudaPlanShape shape{32, 8, 128, 132};
    shape.format = CudaKvFormat::int4;
    shape.recent_blocks = 1 + static_cast<std::uint32_t>(random.below(4));
    shape.sink_blocks = static_cast<std::uint32_t>(random.below(3));
    const std::uint32_t past = static_cast<std::uint32_t>(random.below(3000)),
                        rows = 1 + static_cast<std::uint32_t>(random.below(90));
    std::vector<ArenaOffset> sealed, recent;
    for (std::uint32_t b = 0; b * kCudaPage < past + rows; ++b) {
      sealed.push_back(static_cast<ArenaOffset>(100 + b));
      recent.push_back(static_cast<ArenaOffset>(900 + b));
    }
    const KvSequenceView a{sealed.data(), 0, rows, past}, b{recent.data(), 0, rows, past};
    const KvView view{nullptr, &a, 1, kCudaPage, window}, row_view{nullptr, &b, 1, kCudaPage, 0};
    shape.rows = &row_view;
    plan_cuda_attention(view, shape, plan_);
    std::map<std::uint32_t, std::map<std::uint32_t, std::uint32_t>> ways;  // row: block: how often
    std::map<std::uint32_t, std::uint32_t> owner;
    for (const AttendItem& item : plan_.items) {
      EXPECT_GE(item.sealed_rows(), 1u);
      EXPECT_LE(item.sealed_rows() * 4, kSealedColumns);
      const std::uint32_t page_count = item.row_pages();
      for (std::uint32_t r = 0; r < item.sealed_rows(); ++r) {
        const std::uint32_t position = item.position + r, row = item.row + r;
        const std::uint32_t first = window ? position + 1 - std::min(position + 1, window) : 0;
        for (std::uint32_t block = item.begin / kCudaPage; block * kCudaPage < item.end; ++block)
          ++ways[row][block];
        const RowPages pages =
            cuda_row_pages(position, window, shape.recent_blocks, shape.sink_blocks);
        EXPECT_TRUE(page_count == 0 || page_count == pages.count);
        for (std::uint32_t i = 0; i < page_count; ++i) ++ways[row][pages.at(i)];
        EXPECT_TRUE(page_count == 0 || pages.at(page_count - 1) == position / kCudaPage);
        EXPECT_GE(item.begin, std::min(first, item.end));
        if (item.partial == kNoPartial) continue;
        const std::uint32_t partial = item.partial + r * item.partial_stride;
        EXPECT_TRUE(owner.emplace(partial, row).second) << "two items share a partial";
        EXPECT_GE(partial, plan_.merges[row].first);
        EXPECT_LT(partial, plan_.merges[row].first + plan_.merges[row].count);
      }
    }
    EXPECT_EQ(owner.size(), plan_.partials);
    for (std::uint32_t r = 0; r < rows; ++r) {
      const std::uint32_t last = (past + r) / kCudaPage,
                          first = window
                                      ? (past + r + 1 - std::min(past + r + 1, window)) / kCudaPage
                                      : 0;
      for (std::uint32_t block = first; block <= last; ++block)
        EXPECT_EQ(ways[r][block], 1u) << "row " << past + r << ", block " << block;
    }
    EXPECT_EQ(plan_.seals.size(), (past + rows) / kCudaPage - past / kCudaPage);
    for (const SealPair& seal : plan_.seals) EXPECT_EQ(seal.rows - 900, seal.sealed - 100);
  }
}

}  // namespace
}  // namespace quire
