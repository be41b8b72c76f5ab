#include "kernels/streamed.h"

#include <algorithm>
#include <cmath>

#include "kernels/ref/partial.h"

namespace quire {
namespace {

// Of the reference's merge; the same loop twice, so that one of them has fused products in hardware.
void merge_plain(const float* from, float keep, float take, std::uint32_t dim, float* out) {
  for (std::uint32_t d = 0; d < dim; ++d) out[d] = std::fma(from[d], take, out[d] * keep);
}
[[gnu::target("avx2,fma")]] void merge_fused(const float* from, float keep, float take,
                                             std::uint32_t dim, float* out) {
  for (std::uint32_t d = 0; d < dim; ++d) out[d] = std::fma(from[d], take, out[d] * keep);
}

}  // namespace

void plan_streamed(const AttendShape& shape, const StreamedShape& how,
                   std::span<const StreamedRow> rows, StreamedPlan& plan) {
  plan.windows.clear();
  plan.tasks.clear();
  plan.sums.clear();
  plan.rows = static_cast<std::uint32_t>(rows.size());
  plan.first_partial = how.first_partial;
  plan.stride = how.window_splits + 1;  // the sum, then the splits of a window
  plan.partial_count = plan.rows * shape.kv_heads * plan.stride;
  const auto end_split = [](const StreamedRow& row) {
    return row.begin < row.end ? (row.end - 1) / kAttendSplit + 1 : row.begin / kAttendSplit;
  };
  std::uint32_t first = 0xffffffffu, end = 0;
  for (const StreamedRow& row : rows) {
    if (row.begin >= row.end) continue;
    first = std::min(first, row.begin / kAttendSplit);
    end = std::max(end, end_split(row));
  }
  for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
    for (std::uint32_t i = 0; i < plan.rows; ++i)
      plan.sums.push_back({i, head, rows[i].begin / kAttendSplit, end_split(rows[i])});
  // Windows begin at multiples of their size, so that they are the same in every step.
  for (std::uint32_t at = first / how.window_splits * how.window_splits; at < end;
       at += how.window_splits) {
    const std::uint32_t from = std::max(at, first), to = std::min(end, at + how.window_splits);
    const auto first_task = static_cast<std::uint32_t>(plan.tasks.size());
    for (std::uint32_t i = 0, count; i < plan.rows; i += count) {
      count = std::min(rows[i].together, plan.rows - i);
      const std::uint32_t last = end_split(rows[i + count - 1]);
      for (std::uint32_t split = std::max(from, rows[i].begin / kAttendSplit);
           split < std::min(to, last); ++split)
        for (std::uint32_t head = 0; head < shape.kv_heads; ++head)
          plan.tasks.push_back({.sequence = 0,
                                .kv_head = head,
                                .kv_head_count = 1,
                                .first_row = i,
                                .row_count = count,
                                .split = split,
                                .split_count = 1,
                                .partial = plan.partial_of(i, head) + 1 + split - at,
                                .partial_stride = plan.stride,
                                .cost = 0});
    }
    plan.windows.push_back({from, to, first_task, static_cast<std::uint32_t>(plan.tasks.size()),
                            from * kAttendSplit < how.cold_end});
  }
}

void fold_window(const AttendShape& shape, const StreamedPlan& plan, std::size_t window,
                 const StreamedPlan::Sum& sum, float* partials) {
  const StreamedPlan::Window& w = plan.windows[window];
  const std::uint32_t heads = shape.query_heads / shape.kv_heads, dim = shape.head_dim;
  const std::size_t floats = partial_floats(shape);
  float* const into = partials + plan.partial_of(sum.row, sum.kv_head) * floats;
  const std::uint32_t at = w.first_split / (plan.stride - 1) * (plan.stride - 1);
  static const auto merge = best_isa() == Isa::scalar ? merge_plain : merge_fused;
  for (std::uint32_t h = 0; h < heads; ++h) {
    ref::Partial whole{.out = into + 2 * heads + h * dim};
    if (window == 0)
      whole.clear(dim);
    else
      whole.max = into[h], whole.sum = into[heads + h];
    for (std::uint32_t split = std::max(w.first_split, sum.first_split);
         split < std::min(w.end_split, sum.end_split); ++split) {
      float* const from = into + (1 + split - at) * floats;
      if (from[heads + h] == 0) continue;
      float keep, take;
      whole.merge_sum(from[h], from[heads + h], keep, take);
      merge(from + 2 * heads + h * dim, keep, take, dim, whole.out);
    }
    into[h] = whole.max;
    into[heads + h] = whole.sum;
  }
}

}  // namespace quire
