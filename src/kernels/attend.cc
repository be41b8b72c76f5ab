#include "kernels/attend.h"

#include <algorithm>
#include <tuple>

#include "kernels/attend_scratch.h"
#include "kernels/kv_run.h"

namespace quire {
namespace {

std::uint32_t heads_per_kv(const AttendShape& s) { return s.query_heads / s.kv_heads; }

// Slots of the table that a row of the sequence sees.
struct Range {
  std::uint32_t begin, end;
};
Range visible(const KvView& kv, const KvSequenceView& sequence, std::uint32_t row) {
  const std::uint32_t end = sequence.past + row + 1;
  return {std::max(sequence.ragged_until, kv.window != 0 ? end - std::min(end, kv.window) : 0),
          end};
}

// What rows [first, first + count) cost within splits [begin, end): the slots they see there.
std::uint32_t cost_of(const KvView& kv, const KvSequenceView& sequence, std::uint32_t first,
                      std::uint32_t count, std::uint32_t begin, std::uint32_t end) {
  const SplitNumbers numbers = split_numbers(sequence);
  std::uint32_t slots = 0;
  const auto add = [&](Range seen, Range part) {
    const std::uint32_t from = std::max(seen.begin, part.begin), to = std::min(seen.end, part.end);
    if (from < to) slots += to - from;
  };
  const auto table_slot = [&](std::uint32_t split) {
    return (std::max(split, numbers.lanes) - numbers.table) * kAttendSplit;
  };
  for (std::uint32_t i = 0; i < count; ++i) {
    add({0, sequence.lane_slots_max}, {begin * kAttendSplit, end * kAttendSplit});
    add(visible(kv, sequence, first + i), {table_slot(begin), table_slot(end)});
  }
  return slots;
}
std::uint32_t cost_of(const KvView& kv, const KvSequenceView& sequence, std::uint32_t first,
                      std::uint32_t count) {
  std::uint32_t slots = count * sequence.lane_slots_max;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Range seen = visible(kv, sequence, first + i);
    slots += seen.end - seen.begin;
  }
  return slots;
}

// The splits that these rows see something of.
Range splits_of(const KvView& kv, const KvSequenceView& sequence, std::uint32_t first,
                std::uint32_t count) {
  const SplitNumbers numbers = split_numbers(sequence);
  const std::uint32_t begin = visible(kv, sequence, first).begin;
  return {first_split(numbers, begin), end_split(numbers, begin, sequence.past + first + count)};
}

// Rows [first, first + count) of a sequence, cut into runs of splits and merged afterwards. A run
// starts with an idle memory bus, so runs are as long as balance allows: a third of what is left,
// `cost_max` at most.
void plan_splits(const KvView& kv, const AttendShape& shape, std::uint32_t index,
                 std::uint32_t first, std::uint32_t count, std::uint64_t cost_max,
                 AttendPlan& plan) {
  const KvSequenceView& sequence = kv.sequences[index];
  const auto [split_begin, split_end] = splits_of(kv, sequence, first, count);
  const std::uint32_t splits = split_end - split_begin;
  const auto longest = static_cast<std::uint32_t>(cost_max / (std::uint64_t{kAttendSplit} * count));
  for (std::uint32_t split = split_begin; split < split_end;) {
    const std::uint32_t run = std::max(1u, std::min(longest, (split_end - split) / 3));
    const std::uint32_t cost = cost_of(kv, sequence, first, count, split, split + run);
    for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
      plan.tasks.push_back(
          {.sequence = index,
           .kv_head = head,
           .kv_head_count = 1,
           .first_row = first,
           .row_count = count,
           .split = split,
           .split_count = run,
           .partial = plan.partial_count + head * count * splits + split - split_begin,
           .partial_stride = splits,
           .cost = cost});
    split += run;
  }
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto [from, to] = splits_of(kv, sequence, first + i, 1);
      plan.merges.push_back({index, head, first + i,
                             plan.partial_count + i * splits + from - split_begin, to - from});
    }
    plan.partial_count += count * splits;
  }
}

}  // namespace

std::uint32_t attend_rows_max(const AttendShape& shape) {
  return std::max(1u, kAttendTileHeads / heads_per_kv(shape));
}

std::size_t partial_floats(const AttendShape& shape) {
  return (std::size_t{heads_per_kv(shape)} * (shape.head_dim + 2) + 15) / 16 * 16;
}

std::size_t attend_scratch_bytes(const AttendShape& shape) {
  return attend_scratch_floats(attend_rows_max(shape) * heads_per_kv(shape), shape.head_dim) *
         sizeof(float);
}

void plan_attention(const KvView& kv, const AttendShape& shape, AttendPlan& plan) {
  plan.tasks.clear();
  plan.merges.clear();
  plan.partial_count = 0;
  std::uint64_t total = 0;
  for (std::uint32_t i = 0; i < kv.sequence_count; ++i)
    total += cost_of(kv, kv.sequences[i], 0, kv.sequences[i].row_count);
  // One long task at the end would leave other threads waiting. Whole rows, which need no merge,
  // are better where there are many of them.
  const std::uint64_t share = total * shape.kv_heads / plan.threads;
  const std::uint64_t whole_max = share / 8, run_max = share / 2;
  const std::uint32_t rows_max = attend_rows_max(shape);
  for (std::uint32_t i = 0; i < kv.sequence_count; ++i) {
    const KvSequenceView& sequence = kv.sequences[i];
    for (std::uint32_t first = 0; first < sequence.row_count; first += rows_max) {
      const std::uint32_t count = std::min(rows_max, sequence.row_count - first);
      const std::uint32_t cost = cost_of(kv, sequence, first, count);
      const Range splits = splits_of(kv, sequence, first, count);
      if (cost > whole_max && splits.end - splits.begin > 1) {
        plan_splits(kv, shape, i, first, count, run_max, plan);
        continue;
      }
      // Heads lie side by side in a block: a task that takes them all reads on without a pause.
      const bool together = count == 1 && cost * std::uint64_t{shape.kv_heads} <= whole_max;
      const std::uint32_t heads = together ? shape.kv_heads : 1;
      for (std::uint32_t head = 0; head < shape.kv_heads; head += heads)
        plan.tasks.push_back({.sequence = i,
                              .kv_head = head,
                              .kv_head_count = heads,
                              .first_row = first,
                              .row_count = count,
                              .split = kAllSplits,
                              .split_count = 0,
                              .partial = 0,
                              .partial_stride = 0,
                              .cost = cost * heads});
    }
  }
  const auto order = [](const AttendTask& t) {
    return std::tuple(~t.cost, t.sequence, t.first_row, t.split, t.kv_head);
  };
  std::sort(plan.tasks.begin(), plan.tasks.end(),
            [&](const AttendTask& a, const AttendTask& b) { return order(a) < order(b); });
}

const AttendKernels& attend_kernels(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return kAttendScalar;
    case Isa::avx2:
      return kAttendAvx2;
    case Isa::avx512:
    case Isa::vnni:
      return kAttendAvx512;
    case Isa::bf16:
      return kAttendBf16;
  }
  return kAttendScalar;
}

}  // namespace quire
