// kernels/cpu/sealed_impl.h - the walk of a task over encoded blocks (kernels/sealed.h), and the
// merge with a row's own. Its rows lie in one block, so all see the same end; where a window ends
// they begin apart, and those that see something of a unit are the first ones.
#pragma once

#include "kernels/cpu/attend_impl.h"
#include "kernels/sealed.h"

namespace quire {
namespace {

class SealedWalk {
 public:
  SealedWalk(const SealedStep& step, const AttendTask& task, std::byte* scratch)
      : step_(step),
        shape_(step.shape),
        task_(task),
        sequence_(step.kv.sequences[task.sequence]),
        heads_(shape_.query_heads / shape_.kv_heads),
        tokens_(step.kv.tokens_per_block),
        dim_(shape_.head_dim),
        s_(attend_scratch(reinterpret_cast<float*>(scratch), task.row_count * heads_, dim_)),
        prepared_(scratch + sealed_scratch_bytes(step) -
                  std::size_t{attend_rows_max(shape_)} * heads_ * step.keys.prepared_bytes),
        keys_(step.keys),
        values_(step.values),
        position_(sequence_.past + task.first_row) {}

  void run() {
    const bool whole = task_.split == kAllSplits;
    const std::uint32_t pairs = task_.row_count * heads_;
    if (sequence_.lanes != nullptr && !whole) leave_nothing();
    for (std::uint32_t h = 0; h < task_.kv_head_count; ++h) {
      const std::uint32_t lane = shape_.layer_index * shape_.kv_heads + task_.kv_head + h;
      start_head(task_.kv_head + h);
      if (whole) clear(s_.row_max, s_.row_sum, s_.row_out, pairs);
      for (const bool is_lane : {true, false}) {
        is_lane_ = is_lane;
        run_ = is_lane ? lane_run(sequence_, lane)
                       : table_run(sequence_, lane, shape_.page_bytes, table_reach(0).begin,
                                   table_reach(0).end);
        if (run_.begin < run_.end) attend_run(pairs);
      }
      if (whole)
        leave(s_.row_max, s_.row_sum, s_.row_out,
              task_.partial + h * task_.row_count * task_.partial_stride);
    }
  }

 private:
  void attend_run(std::uint32_t pairs) {
    const bool whole = task_.split == kAllSplits;
    for (std::uint32_t at = run_.begin; at < run_.end;) {
      const std::uint32_t stop = least(run_.end, (at / kAttendSplit + 1) * kAttendSplit);
      const std::uint32_t split = at / kAttendSplit + run_.split_shift - task_.split;
      if (whole || split < task_.split_count) {
        clear(s_.split_max, s_.split_sum, s_.split_out, pairs);
        for (std::uint32_t unit = at / kEncodedUnit * kEncodedUnit; unit < stop;
             unit += kEncodedUnit)
          attend_slots(unit, whole || split + 1 < task_.split_count ? run_.end : stop);
        if (whole)
          merge_split(stop);
        else
          leave(s_.split_max, s_.split_sum, s_.split_out, task_.partial + split);
      }
      at = stop;
    }
  }

  // A lane may end before the task's splits do.
  void leave_nothing() const {
    for (std::uint32_t i = 0; i < task_.row_count; ++i)
      for (std::uint32_t split = 0; split < task_.split_count; ++split)
        fill(step_.partials +
                 (task_.partial + std::size_t{i} * task_.partial_stride + split) *
                     partial_floats(shape_) +
                 heads_,
             heads_, 0);
  }

  SealedReach table_reach(std::uint32_t row) const {
    return sealed_reach(position_ + row, tokens_, step_.kv.window, step_.recent_blocks,
                        step_.sink_blocks);
  }
  // Where a row begins to see the run at hand; all of them see it to its end.
  std::uint32_t row_begin(std::uint32_t row) const {
    return is_lane_ ? run_.begin : most(run_.begin, table_reach(row).begin);
  }
  // Rows that see something before this slot.
  std::uint32_t rows_before(std::uint32_t stop) const {
    std::uint32_t n = task_.row_count;
    while (n > 0 && row_begin(n - 1) >= stop) --n;
    return n;
  }

  void clear(float* top, float* sum, float* out, std::uint32_t pairs) const {
    fill(top, pairs, kLowest);
    fill(sum, pairs, 0);
    fill(out, pairs * dim_, 0);
  }

  void start_head(std::uint32_t kv_head) {
    for (std::uint32_t i = 0; i < task_.row_count; ++i) {
      const float* from = step_.queries +
                          (sequence_.first_row + task_.first_row + i) * step_.row_stride +
                          std::size_t{kv_head} * heads_ * dim_;
      for (std::size_t d = 0; d < heads_ * dim_; d += 16)
        store(s_.queries + i * heads_ * dim_ + d, mul(all(shape_.scale), load(from + d)));
    }
    keys_.lane = step_.keys.lane + 2 * kv_head;
    values_.lane = step_.values.lane + 2 * kv_head;
    step_.kernels->prepare(keys_, s_.queries, dim_, task_.row_count * heads_, prepared_);
  }

  // The pages of a unit that somebody sees; where nobody does, another stands in.
  std::uint32_t pages(std::uint32_t first, std::uint32_t stop, std::size_t offset,
                      const std::byte** to) const {
    std::uint32_t count = 0;
    const std::uint32_t from = most(run_.begin, first) / tokens_ * tokens_;
    for (std::uint32_t slot = first; slot < stop; slot += tokens_)
      to[count++] =
          arena_at(step_.kv.arena, run_.pages[most(slot, from) / tokens_]) + run_.offset + offset;
    return count;
  }

  void attend_slots(std::uint32_t first, std::uint32_t task_end) {
    const std::uint32_t stop = least(run_.end, first + kEncodedUnit), rows = rows_before(stop),
                        n = rows * heads_;
    EncodedUnit keys, values;
    keys.page_count = pages(first, stop, 0, keys.pages);
    values.page_count = pages(first, stop, shape_.key_bytes, values.pages);
    const std::uint32_t after = first + kEncodedUnit;
    const std::uint32_t after_stop =
        after < task_end ? least(run_.end, after + kEncodedUnit) : after;
    keys.next_count = pages(after, after_stop, 0, keys.next);
    values.next_count = pages(after, after_stop, shape_.key_bytes, values.next);
    keys.next_bytes = step_.keys.page_bytes;
    values.next_bytes = step_.values.page_bytes;

    keys.position = first;
    step_.kernels->scores(keys_, keys, prepared_, n, s_.weights);
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::uint32_t from = most(row_begin(row), first);
      if (from == first && stop == after) continue;
      for (std::uint32_t h = 0; h < heads_; ++h)
        mask_scores<kEncodedUnit>(from - first, stop - first,
                                  s_.weights + (row * heads_ + h) * kEncodedUnit);
    }
    for (std::uint32_t i = 0; i < n; ++i)
      s_.unit_max[i] = max_score<kEncodedUnit>(s_.weights + i * kEncodedUnit);
    for (std::uint32_t i = 0; i < n; ++i)
      s_.unit_sum[i] = softmax<kEncodedUnit>(s_.unit_max[i], s_.weights + i * kEncodedUnit);
    merge_sums(s_.unit_max, s_.unit_sum, n, s_.split_max, s_.split_sum, s_.keep, s_.take);
    step_.kernels->add_values(values_, values, s_.weights, n, s_.keep, s_.take, s_.split_out);
  }

  void merge_split(std::uint32_t stop) {
    const std::uint32_t n = rows_before(stop) * heads_;
    merge_sums(s_.split_max, s_.split_sum, n, s_.row_max, s_.row_sum, s_.keep, s_.take);
    merge_outputs(s_.split_out, n, dim_, s_.keep, s_.take, s_.row_out);
  }

  void leave(const float* top, const float* sum, const float* out, std::uint32_t number) const {
    for (std::uint32_t i = 0; i < task_.row_count; ++i) {
      float* partial = step_.partials +
                       (number + std::size_t{i} * task_.partial_stride) * partial_floats(shape_);
      for (std::uint32_t h = 0; h < heads_; ++h) {
        partial[h] = top[i * heads_ + h];
        partial[heads_ + h] = sum[i * heads_ + h];
      }
      for (std::size_t d = 0; d < heads_ * dim_; ++d)
        partial[2 * heads_ + d] = out[i * heads_ * dim_ + d];
    }
  }

  const SealedStep& step_;
  const AttendShape& shape_;
  const AttendTask& task_;
  const KvSequenceView& sequence_;
  const std::uint32_t heads_, tokens_;
  const std::size_t dim_;
  const AttendScratch s_;
  std::byte* const prepared_;
  EncodedPart keys_, values_;     // of the head at hand
  const std::uint32_t position_;  // of row 0: the first to begin; all end alike
  KvRun run_{};
  bool is_lane_ = false;
};

void attend_sealed(const SealedStep& step, const AttendTask& task, std::byte* scratch) {
  SealedWalk(step, task, scratch).run();
}

void merge_sealed(const SealedStep& step, const SealedMerge& m) {
  const AttendShape& shape = step.shape;
  const std::uint32_t heads = shape.query_heads / shape.kv_heads;
  const std::size_t dim = shape.head_dim;
  float* out = step.out + m.row * step.row_stride + std::size_t{m.kv_head} * heads * dim;
  for (std::uint32_t h = 0; h < heads; ++h) {
    float top[16] = {kLowest}, sum[16] = {}, keep[16], take[16];  // one lane of each is used
    float* to = out + h * dim;
    fill(to, dim, 0);
    const auto fold = [&](std::uint32_t first, std::uint32_t count) {
      for (std::uint32_t i = first; i < first + count; ++i) {
        const float* partial = step.partials + i * partial_floats(shape);
        if (partial[heads + h] == 0) continue;
        merge_sums(partial + h, partial + heads + h, 1, top, sum, keep, take);
        merge_outputs(partial + 2 * heads + h * dim, 1, dim, keep, take, to);
      }
    };
    fold(m.encoded_first, m.encoded_count);
    if (m.encoded_count > 0) step.kernels->finish(step.values, 1, to);
    fold(m.rows_first, m.rows_count);
    finish(to, sum, 1, dim, to);
  }
}

}  // namespace
}  // namespace quire
