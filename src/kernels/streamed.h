// kernels/streamed.h - attention of one sequence whose blocks are not all in memory at once. It takes
// windows of splits, left to right, and keeps a sum for each row and head.
//
// A split leaves a partial (attend.h). After each window its partials are merged into the row's sum, in
// order, so the bits are those of a sequence that lies in memory whole. The plan serves every layer of
// the group.
//
//   plan_streamed(kv, shape, {.window_splits = 2, .cold_end = cold * P}, rows, plan);
//   for (window : plan.windows) {
//     ...                                             // its blocks are there
//     for (task : window's tasks) kernels.attend(...);        // or attend_sealed; any thread
//     for (sum : plan.sums) fold_window(step, plan, window, sum);   // after all of them; any thread
//   }
//   // the sum is a partial: plan.first_partial + sum number * plan.stride
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attend.h"

namespace quire {

// Slots of the table that a row reads split by split, and how many rows from this one on a task may
// take together.
struct StreamedRow {
  std::uint32_t begin, end, together;
};

struct StreamedShape {
  std::uint32_t window_splits;
  std::uint32_t cold_end;           // slots before it are brought window by window
  std::uint32_t first_partial = 0;  // where this plan's partials begin
};

struct StreamedPlan {
  struct Window {
    std::uint32_t first_split, end_split;
    std::uint32_t first_task, end_task;
    bool cold;  // some of its blocks are
  };
  struct Sum {
    std::uint32_t row, kv_head;
    std::uint32_t first_split, end_split;  // that the row reads
  };
  std::vector<Window> windows;
  std::vector<AttendTask> tasks;
  std::vector<Sum> sums;  // by head, then by row
  std::uint32_t first_partial = 0, stride = 0, partial_count = 0;

  std::uint32_t partial_of(std::uint32_t row, std::uint32_t kv_head) const {
    return first_partial + (kv_head * rows + row) * stride;
  }
  std::uint32_t rows = 0;
};

void plan_streamed(const AttendShape& shape, const StreamedShape& how,
                   std::span<const StreamedRow> rows, StreamedPlan& plan);

// Merges what a window left into a sum. The first window clears it.
void fold_window(const AttendShape& shape, const StreamedPlan& plan, std::size_t window,
                 const StreamedPlan::Sum& sum, float* partials);

}  // namespace quire
