#include "kernels/attend.h"

#include <algorithm>
#include <tuple>

#include "kernels/attend_scratch.h"

namespace quire {
namespace {

std::uint32_t heads_per_kv(const AttendShape& s) { return s.query_heads / s.kv_heads; }

// Slots that a row at this position sees.
struct Range {
  std::uint32_t begin, end;
};
Range visible(const KvView& kv, std::uint32_t position) {
  const std::uint32_t end = position + 1;
  return {kv.window != 0 ? end - std::min(end, kv.window) : 0, end};
}

// What rows [first, first + count) cost within slots [begin, end): the slots they see there.
std::uint32_t cost_of(const KvView& kv, const KvSequenceView& sequence, std::uint32_t first,
                      std::uint32_t count, std::uint32_t begin = 0,
                      std::uint32_t end = 0xffffffffu) {
  std::uint32_t slots = 0;
  for (std::uint32_t i = 0; i < count; ++i) {
    const Range r = visible(kv, sequence.past + first + i);
    const std::uint32_t from = std::max(begin, r.begin), to = std::min(end, r.end);
    if (from < to) slots += to - from;
  }
  return slots;
}

// Rows [first, first + count) of a sequence, cut into runs of splits and merged afterwards. A run
// starts with an idle memory bus, so runs are as long as balance allows: a third of what is left,
// `cost_max` at most.
void plan_splits(const KvView& kv, const AttendShape& shape, std::uint32_t index,
                 std::uint32_t first, std::uint32_t count, std::uint64_t cost_max,
                 AttendPlan& plan) {
  const KvSequenceView& sequence = kv.sequences[index];
  const std::uint32_t split_begin = visible(kv, sequence.past + first).begin / kAttendSplit;
  const std::uint32_t split_end = (sequence.past + first + count - 1) / kAttendSplit + 1;
  const std::uint32_t splits = split_end - split_begin;
  const auto longest = static_cast<std::uint32_t>(cost_max / (std::uint64_t{kAttendSplit} * count));
  for (std::uint32_t split = split_begin; split < split_end;) {
    const std::uint32_t run = std::max(1u, std::min(longest, (split_end - split) / 3));
    const std::uint32_t cost =
        cost_of(kv, sequence, first, count, split * kAttendSplit, (split + run) * kAttendSplit);
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
      const Range r = visible(kv, sequence.past + first + i);
      const std::uint32_t from = r.begin / kAttendSplit, to = (r.end - 1) / kAttendSplit + 1;
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
      if (cost > whole_max && sequence.past + first + count > kAttendSplit) {
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
