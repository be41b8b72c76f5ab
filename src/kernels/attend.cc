#include "kernels/attend.h"

#include <algorithm>
#include <span>
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

using Part = AttendPlan::Part;

// Splits that all of these sequences have in the same blocks, below every row of theirs.
std::uint32_t shared_splits(const KvView& kv, const KvSequenceView& a, const KvSequenceView& b) {
  if (kv.window != 0 || a.ragged_until > 0 || b.ragged_until > 0) return 0;
  const std::uint32_t per_split = kAttendSplit / kv.tokens_per_block;
  const std::uint32_t most = std::min(a.past, b.past) / kAttendSplit;
  std::uint32_t splits = 0;
  while (splits < most &&
         std::equal(a.blocks + splits * per_split, a.blocks + (splits + 1) * per_split,
                    b.blocks + splits * per_split))
    ++splits;
  return splits;
}

// Plans rows that are cut into runs of splits and merged afterwards. The first `shared` splits are
// read once for all parts: every row sees all of these splits, so a kernel can take the rows of all
// parts as if they were rows of the first. A run starts with an idle memory bus, so runs are as
// long as balance allows: a third of what is left, and at most `cost_max`.
void plan_splits(const KvView& kv, const AttendShape& shape, std::span<const Part> parts,
                 std::uint32_t shared, std::uint64_t cost_max, AttendPlan& plan) {
  const auto splits_of_part = [&](const Part& p) {
    return splits_of(kv, kv.sequences[p.sequence], p.first, p.count);
  };
  const std::uint32_t split_begin = splits_of_part(parts[0]).begin;
  std::uint32_t rows = 0, stride = 0;
  for (const Part& p : parts) {
    rows += p.count;
    stride = std::max(stride, splits_of_part(p).end - split_begin);
  }
  const auto add_runs = [&](const Part& p, std::uint32_t row, std::uint32_t from,
                            std::uint32_t end) {
    const auto longest =
        static_cast<std::uint32_t>(cost_max / (std::uint64_t{kAttendSplit} * p.count));
    for (std::uint32_t split = from; split < end;) {
      const std::uint32_t run = std::max(1u, std::min(longest, (end - split) / 3));
      const std::uint32_t cost =
          cost_of(kv, kv.sequences[p.sequence], p.first, p.count, split, split + run);
      for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
        plan.tasks.push_back(
            {.sequence = p.sequence,
             .kv_head = head,
             .kv_head_count = 1,
             .first_row = p.first,
             .row_count = p.count,
             .split = split,
             .split_count = run,
             .partial = plan.partial_count + (head * rows + row) * stride + split - split_begin,
             .partial_stride = stride,
             .cost = cost});
      split += run;
    }
  };
  if (shared > 0) add_runs({parts[0].sequence, parts[0].first, rows}, 0, 0, shared);
  std::uint32_t row = 0;
  for (const Part& p : parts) {
    add_runs(p, row, std::max(shared, split_begin), splits_of_part(p).end);
    for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
      for (std::uint32_t i = 0; i < p.count; ++i) {
        const auto [from, to] = splits_of(kv, kv.sequences[p.sequence], p.first + i, 1);
        plan.merges.push_back(
            {p.sequence, head, p.first + i,
             plan.partial_count + (head * rows + row + i) * stride + from - split_begin,
             to - from});
      }
    row += p.count;
  }
  plan.partial_count += shape.kv_heads * rows * stride;
}

// Collects the sequences from `index` on that are worth planning together, as parts, and finds what
// they share. Returns their number. A sequence with many rows keeps a task busy by itself.
std::uint32_t bundle(const KvView& kv, std::uint32_t index, std::uint32_t rows_max,
                     std::vector<Part>& parts, std::uint32_t& shared) {
  parts.clear();
  shared = 0xffffffffu;
  std::uint32_t rows = 0;
  for (std::uint32_t i = index; i < kv.sequence_count; ++i) {
    const std::uint32_t count = kv.sequences[i].row_count;
    if (rows + count > rows_max || count > rows_max / 2) break;
    if (i > index) {
      // Their rows must follow each other: in the last layer, where only some go on, they may not.
      if (kv.sequences[i].first_row != kv.sequences[index].first_row + rows) break;
      const std::uint32_t with = shared_splits(kv, kv.sequences[index], kv.sequences[i]);
      // One more sequence is not worth losing half of the shared splits.
      if (with == 0 || (parts.size() > 1 && with < shared / 2)) break;
      shared = std::min(shared, with);
    }
    parts.push_back({i, 0, count});
    rows += count;
  }
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(parts.size()));
}

void plan_rows(const KvView& kv, const AttendShape& shape, std::uint32_t index,
               std::uint64_t whole_max, std::uint64_t run_max, AttendPlan& plan) {
  const KvSequenceView& sequence = kv.sequences[index];
  const std::uint32_t rows_max = attend_rows_max(shape);
  for (std::uint32_t first = 0; first < sequence.row_count; first += rows_max) {
    const Part part{index, first, std::min(rows_max, sequence.row_count - first)};
    const std::uint32_t cost = cost_of(kv, sequence, first, part.count);
    const Range splits = splits_of(kv, sequence, first, part.count);
    if (cost > whole_max && splits.end - splits.begin > 1) {
      plan_splits(kv, shape, {&part, 1}, 0, run_max, plan);
      continue;
    }
    // Heads lie side by side in a block: a task that takes all heads reads memory in order.
    const bool together = part.count == 1 && cost * std::uint64_t{shape.kv_heads} <= whole_max;
    const std::uint32_t heads = together ? shape.kv_heads : 1;
    for (std::uint32_t head = 0; head < shape.kv_heads; head += heads)
      plan.tasks.push_back({.sequence = index,
                            .kv_head = head,
                            .kv_head_count = heads,
                            .first_row = first,
                            .row_count = part.count,
                            .split = kAllSplits,
                            .split_count = 0,
                            .partial = 0,
                            .partial_stride = 0,
                            .cost = cost * heads});
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
  return attend_scratch_floats(attend_rows_max(shape) * heads_per_kv(shape), shape.head_dim,
                               shape.rotated) *
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
  std::uint32_t shared = 0;
  for (std::uint32_t i = 0; i < kv.sequence_count;) {
    const std::uint32_t together = bundle(kv, i, rows_max, plan.parts, shared);
    if (together > 1)
      plan_splits(kv, shape, plan.parts, shared, run_max, plan);
    else
      plan_rows(kv, shape, i, whole_max, run_max, plan);
    i += together;
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
