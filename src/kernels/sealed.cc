#include "kernels/sealed.h"

#include <algorithm>
#include <tuple>

#include "kernels/attend_scratch.h"
#include "kernels/kv_run.h"

namespace quire {
namespace {

class SealedPlanner {
 public:
  SealedPlanner(const KvView& kv, std::span<const RowBlocks> rows, const SealedShape& shape,
                SealedPlan& plan)
      : kv_(kv), rows_(rows), shape_(shape), plan_(plan) {}

  void run() {
    plan_.encoded.clear();
    plan_.merges.clear();
    plan_.partial_count = 0;
    for (SealedPlan::Rows* r : {&plan_.kept, &plan_.passing}) {
      r->sequences.clear();
      r->tables.clear();
      r->tasks.clear();
    }
    std::uint64_t total = 0;
    each_part([&](std::uint32_t sequence, std::uint32_t first, std::uint32_t count) {
      total += cost(sequence, first, count);
    });
    const std::uint64_t share = total * shape_.encoded.kv_heads / plan_.threads;
    whole_max_ = share / 8;
    run_max_ = share / 2;
    each_part([&](std::uint32_t sequence, std::uint32_t first, std::uint32_t count) {
      add_part(sequence, first, count);
    });
    for (SealedPlan::Rows* r : {&plan_.kept, &plan_.passing}) {
      std::size_t at = 0;
      for (KvSequenceView& s : r->sequences) {
        s.blocks = r->tables.data() + at;
        at += (s.past + s.row_count - 1) / kv_.tokens_per_block + 1;
      }
      r->view = kv_;
      r->view.sequences = r->sequences.data();
      r->view.sequence_count = static_cast<std::uint32_t>(r->sequences.size());
    }
    const auto order = [](const AttendTask& t) {
      return std::tuple(~t.cost, t.sequence, t.first_row, t.split, t.kv_head);
    };
    std::sort(plan_.encoded.begin(), plan_.encoded.end(),
              [&](const AttendTask& a, const AttendTask& b) { return order(a) < order(b); });
  }

 private:
  // What a row reads encoded from the table.
  SealedReach table_reach(const KvSequenceView& s, std::uint32_t row) const {
    const SealedReach r = sealed_reach(s.past + row, kv_.tokens_per_block, kv_.window,
                                       shape_.recent_blocks, shape_.sink_blocks);
    return {std::max(r.begin, std::min(s.ragged_until, r.end)), r.end};
  }

  // Calls f(sequence, first row, count) for runs of rows that lie in one block and fit one task.
  template <class F>
  void each_part(F f) const {
    const std::uint32_t rows_max = attend_rows_max(shape_.encoded);
    for (std::uint32_t i = 0; i < kv_.sequence_count; ++i) {
      const KvSequenceView& s = kv_.sequences[i];
      for (std::uint32_t first = 0, count = 0; first < s.row_count; first += count) {
        const std::uint32_t left = kv_.tokens_per_block - (s.past + first) % kv_.tokens_per_block;
        count = std::min({rows_max, s.row_count - first, left});
        f(i, first, count);
      }
    }
  }

  std::uint64_t cost(std::uint32_t sequence, std::uint32_t first, std::uint32_t count) const {
    const KvSequenceView& s = kv_.sequences[sequence];
    const SealedReach r = table_reach(s, first);
    return std::uint64_t{r.end - r.begin + s.lane_slots_max} * count;
  }

  void add_part(std::uint32_t sequence, std::uint32_t first, std::uint32_t count) {
    const KvSequenceView& s = kv_.sequences[sequence];
    const std::uint32_t kv_heads = shape_.encoded.kv_heads;
    const SplitNumbers numbers = split_numbers(s);
    const SealedReach r = table_reach(s, first);
    const std::uint32_t split_begin = first_split(numbers, r.begin),
                        split_end = end_split(numbers, r.begin, r.end);
    const std::uint64_t slots = cost(sequence, first, count);
    const bool whole = slots <= whole_max_ || split_end - split_begin == 1;
    // Partials lie by head, then by row, a row's side by side.
    const std::uint32_t splits = split_begin == split_end || shape_.rows_only ? 0
                                 : whole                                      ? 1
                                         : split_end - split_begin;
    const std::uint32_t encoded_at = plan_.partial_count;
    const auto longest =
        static_cast<std::uint32_t>(run_max_ / (std::uint64_t{kAttendSplit} * count));
    const auto task = [&](std::uint32_t head, std::uint32_t heads, std::uint32_t split,
                          std::uint32_t run, std::uint64_t task_cost) {
      plan_.encoded.push_back(
          {.sequence = sequence,
           .kv_head = head,
           .kv_head_count = heads,
           .first_row = first,
           .row_count = count,
           .split = split,
           .split_count = run,
           .partial = encoded_at + head * count * splits + (whole ? 0 : split - split_begin),
           .partial_stride = splits,
           .cost = static_cast<std::uint32_t>(std::min<std::uint64_t>(task_cost, 0xffffffffu))});
    };
    if (splits > 0 && whole) {
      const bool together = count == 1 && slots * kv_heads <= whole_max_;
      const std::uint32_t heads = together ? kv_heads : 1;
      for (std::uint32_t head = 0; head < kv_heads; head += heads)
        task(head, heads, kAllSplits, 0, slots * heads);
    } else if (splits > 0) {
      for (std::uint32_t split = split_begin; split < split_end;) {
        const std::uint32_t run = std::max(1u, std::min(longest, (split_end - split) / 3));
        for (std::uint32_t head = 0; head < kv_heads; ++head)
          task(head, 1, split, run, std::uint64_t{run} * kAttendSplit * count);
        split += run;
      }
    }
    plan_.partial_count += kv_heads * count * splits;

    const std::uint32_t rows_at = plan_.partial_count;
    const std::uint32_t past = add_rows(sequence, first, count);
    const std::uint32_t row_splits = (past + count - 1) / kAttendSplit + 1;
    for (std::uint32_t head = 0; head < kv_heads; ++head)
      for (std::uint32_t i = 0; i < count; ++i) {
        const SealedReach own = table_reach(s, first + i);
        const std::uint32_t from = first_split(numbers, own.begin);
        const std::uint32_t own_splits = end_split(numbers, own.begin, own.end) - from;
        const std::uint32_t seen = shape_.rows_only ? 0
                                   : whole          ? std::min(1u, own_splits)
                                                    : own_splits;
        const std::uint32_t end = past + i + 1;
        const std::uint32_t row_from =
            kv_.window != 0 && end > kv_.window ? (end - kv_.window) / kAttendSplit : 0;
        plan_.merges.push_back({.row = s.first_row + first + i,
                                .kv_head = head,
                                .encoded_first = encoded_at + (head * count + i) * splits +
                                                 (whole || seen == 0 ? 0 : from - split_begin),
                                .encoded_count = seen,
                                .rows_first = rows_at + (head * count + i) * row_splits + row_from,
                                .rows_count = (end - 1) / kAttendSplit + 1 - row_from});
      }
    plan_.partial_count += kv_heads * count * row_splits;
  }

  // The blocks that these rows read as rows, as a sequence of their own; returns the slots before
  // the first row.
  std::uint32_t add_rows(std::uint32_t sequence, std::uint32_t first, std::uint32_t count) {
    const KvSequenceView& s = kv_.sequences[sequence];
    const RowBlocks& at = rows_[sequence];
    const std::uint32_t tokens = kv_.tokens_per_block, own = (s.past + first) / tokens;
    const std::uint32_t from = own - std::min(own, shape_.recent_blocks);
    const bool passing = at.blocks[own] == kNoBlock;
    SealedPlan::Rows& rows = passing ? plan_.passing : plan_.kept;
    std::uint32_t before = 0;
    const auto add = [&](std::uint32_t block) {
      rows.tables.push_back(
          passing ? static_cast<ArenaOffset>((at.scratch_number + block - at.scratch_begin) *
                                             shape_.scratch_stride)
                  : at.blocks[block]);
      before += tokens;
    };
    if (kv_.window == 0)
      for (std::uint32_t b = 0; b < std::min(from, shape_.sink_blocks); ++b) add(b);
    for (std::uint32_t b = from; b <= own; ++b) add(b);
    const std::uint32_t past = before - tokens + (s.past + first) % tokens;
    const std::uint32_t splits = (past + count - 1) / kAttendSplit + 1;
    const auto number = static_cast<std::uint32_t>(rows.sequences.size());
    rows.sequences.push_back(
        {.blocks = nullptr, .first_row = s.first_row + first, .row_count = count, .past = past});
    for (std::uint32_t head = 0; head < shape_.rows.kv_heads; ++head)
      rows.tasks.push_back({.sequence = number,
                            .kv_head = head,
                            .kv_head_count = 1,
                            .first_row = 0,
                            .row_count = count,
                            .split = 0,
                            .split_count = splits,
                            .partial = plan_.partial_count + head * count * splits,
                            .partial_stride = splits,
                            .cost = 0});
    return past;
  }

  const KvView& kv_;
  const std::span<const RowBlocks> rows_;
  const SealedShape& shape_;
  SealedPlan& plan_;
  std::uint64_t whole_max_ = 0, run_max_ = 0;
};

}  // namespace

void plan_sealed(const KvView& kv, std::span<const RowBlocks> rows, const SealedShape& shape,
                 SealedPlan& plan) {
  SealedPlanner(kv, rows, shape, plan).run();
}

std::size_t sealed_scratch_bytes(const SealedStep& step) {
  const std::size_t pairs =
      std::size_t{attend_rows_max(step.shape)} * (step.shape.query_heads / step.shape.kv_heads);
  const std::size_t floats = attend_scratch_floats(pairs, step.shape.head_dim);
  return (floats * sizeof(float) + 63) / 64 * 64 + pairs * step.keys.prepared_bytes;
}

}  // namespace quire
