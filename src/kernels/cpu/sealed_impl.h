// kernels/cpu/sealed_impl.h - the walk of a task over encoded blocks (kernels/sealed.h), and the
// merge with a row's own block. The rows of a task lie in one block, so all of them see up to the
// same slot. A window makes them begin at different slots; the rows that see a part of a unit are
// then the first ones.
//
// A few rows take two units at a time: scores of both, weights of both, values of both. Between
// these stages lies a chain of reductions and a division; while one unit waits for its chain, the
// core works on the other.
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
        width_(query_dim(shape_)),
        pairs_(task.row_count * heads_),
        units_(2 * pairs_ <= attend_rows_max(shape_) * heads_ ? 2 : 1),
        unit_pages_(kEncodedUnit / tokens_),
        s_(attend_scratch(reinterpret_cast<float*>(scratch), units_ * pairs_, dim_,
                          shape_.rotated)),
        own_(sealed_scratch(step, scratch)),
        keys_(step.keys),
        values_(step.values),
        position_(sequence_.past + task.first_row) {}

  void run() {
    const bool whole = task_.split == kAllSplits;
    if (sequence_.lanes != nullptr && !whole) leave_nothing();
    for (std::uint32_t h = 0; h < task_.kv_head_count; ++h) {
      const std::uint32_t lane = lane_of(shape_, task_.kv_head + h);
      start_head(task_.kv_head + h);
      if (whole) clear(s_.row_max, s_.row_sum, s_.row_out);
      for (const bool is_lane : {true, false}) {
        is_lane_ = is_lane;
        run_ = is_lane ? lane_run(sequence_, lane)
                       : table_run(sequence_, lane, shape_.page_bytes, table_reach(0).begin,
                                   table_reach(0).end);
        if (run_.begin < run_.end) attend_run();
      }
      if (whole)
        leave(s_.row_max, s_.row_sum, s_.row_out,
              task_.partial + h * task_.row_count * task_.partial_stride);
    }
  }

 private:
  void attend_run() {
    const bool whole = task_.split == kAllSplits;
    bool begun = false;
    for (std::uint32_t at = run_.begin; at < run_.end;) {
      const std::uint32_t stop = least(run_.end, (at / kAttendSplit + 1) * kAttendSplit);
      const std::uint32_t split = at / kAttendSplit + run_.split_shift - task_.split;
      if (whole || split < task_.split_count) {
        clear(s_.split_max, s_.split_sum, s_.split_out);
        const std::uint32_t task_end = whole || split + 1 < task_.split_count ? run_.end : stop;
        if (!begun) fetch(at / kEncodedUnit * kEncodedUnit, task_end);
        begun = true;
        for (std::uint32_t unit = at / kEncodedUnit * kEncodedUnit; unit < stop;
             unit += units_ * kEncodedUnit)
          attend_units(unit, least(units_, (stop - unit - 1) / kEncodedUnit + 1), task_end);
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
  // The first slot of the current run that a row sees; every row sees the run to its end.
  std::uint32_t row_begin(std::uint32_t row) const {
    return is_lane_ || step_.kv.window == 0 ? run_.begin : most(run_.begin, table_reach(row).begin);
  }
  // Rows that see something before this slot.
  std::uint32_t rows_before(std::uint32_t stop) const {
    std::uint32_t n = task_.row_count;
    while (n > 0 && row_begin(n - 1) >= stop) --n;
    return n;
  }

  void clear(float* top, float* sum, float* out) const {
    fill(top, pairs_, kLowest);
    fill(sum, pairs_, 0);
    fill(out, pairs_ * dim_, 0);
  }

  void start_head(std::uint32_t kv_head) {
    for (std::uint32_t i = 0; i < task_.row_count; ++i) {
      const float* from = step_.queries +
                          (sequence_.first_row + task_.first_row + i) * step_.row_stride +
                          std::size_t{kv_head} * heads_ * width_;
      for (std::size_t d = 0; d < heads_ * width_; d += 16)
        store(s_.queries + i * heads_ * width_ + d, mul(all(shape_.scale), load(from + d)));
    }
    keys_.lane = step_.keys.lane + 2 * kv_head;
    values_.lane = step_.values.lane + 2 * kv_head;
    const float* const for_keys = is_latent() ? s_.queries + dim_ : s_.queries;
    step_.kernels->prepare(keys_, for_keys, width_, pairs_, own_.prepared);
    if (is_latent())
      step_.kernels->prepare(step_.latent, s_.queries, width_, pairs_, own_.prepared_latent);
  }

  // The unit at `first`, and the unit to fetch meanwhile: the one `units_` further on.
  void find_unit(std::uint32_t first, std::uint32_t task_end, EncodedUnit& keys,
                 EncodedUnit& values) const {
    const std::uint32_t next = first + units_ * kEncodedUnit;
    keys.page_count = values.page_count = find_pages(first, run_.end, keys.pages, values.pages);
    keys.next_count = values.next_count =
        next < task_end ? find_pages(next, run_.end, keys.next, values.next) : 0;
    keys.next_bytes = step_.keys.page_bytes;
    values.next_bytes = step_.values.page_bytes;
    keys.position = first;
  }

  static void fetch_bytes(const std::byte* from, std::size_t bytes) {
    for (std::size_t at = 0; at < bytes; at += 64)
      _mm_prefetch(reinterpret_cast<const char*>(from + at), _MM_HINT_T1);
  }

  // Pages lie far apart and their places are looked up in a table: all look-ups come first, so that
  // their cache misses overlap.
  void touch_next(const EncodedUnit& keys, const EncodedUnit& values) const {
    for (std::uint32_t i = 0; i < keys.next_count; ++i) {
      fetch_bytes(keys.next[i], 1);
      fetch_bytes(values.next[i] + values.next_bytes - 1, 1);
    }
  }

  // Fetches the first units, which no earlier unit has fetched.
  void fetch(std::uint32_t first, std::uint32_t task_end) const {
    const std::byte *keys[kEncodedPagesMax], *values[kEncodedPagesMax];
    for (std::uint32_t u = 0; u < units_ && first < task_end; ++u, first += kEncodedUnit) {
      const std::uint32_t count = find_pages(first, run_.end, keys, values);
      for (std::uint32_t i = 0; i < count; ++i) fetch_bytes(keys[i], step_.keys.page_bytes);
      for (std::uint32_t i = 0; i < count; ++i) fetch_bytes(values[i], step_.values.page_bytes);
    }
  }

  // The pages of a unit. A page that no row sees is replaced by one that some row sees.
  std::uint32_t find_pages(std::uint32_t first, std::uint32_t end, const std::byte** keys,
                           const std::byte** values) const {
    const ArenaOffset* table = run_.pages + first / kEncodedUnit * unit_pages_;
    const std::uint32_t count =
        end - first >= kEncodedUnit ? unit_pages_ : (end - first - 1) / tokens_ + 1;
    const std::uint32_t unseen = run_.begin > first ? (run_.begin - first) / tokens_ : 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      keys[i] = arena_at(step_.kv.arena, table[most(i, unseen)]) + run_.offset;
      values[i] = keys[i] + shape_.key_bytes;
    }
    return count;
  }

  void attend_units(std::uint32_t first, std::uint32_t count, std::uint32_t task_end) {
    EncodedUnit keys[2], values[2];
    std::uint32_t n[2];  // pairs that see something of it
    for (std::uint32_t u = 0; u < count; ++u) {
      find_unit(first + u * kEncodedUnit, task_end, keys[u], values[u]);
      touch_next(keys[u], values[u]);
    }
    for (std::uint32_t u = 0; u < count; ++u) {
      const std::uint32_t begin = first + u * kEncodedUnit;
      n[u] = rows_before(least(run_.end, begin + kEncodedUnit)) * heads_;
      step_.kernels->scores(keys_, keys[u], own_.prepared, n[u], weights(u, 0));
      if (is_latent()) add_latent_scores(values[u], n[u], weights(u, 0));
      if (shape_.softcap != 0) cap_scores<kEncodedUnit>(shape_.softcap, n[u], weights(u, 0));
      mask_unit(begin, n[u] / heads_, u);
    }
    for (std::uint32_t u = 0; u < count; ++u)
      by_fours(n[u], s_.unit_max + u * pairs_, MaxPair{},
               [&](std::uint32_t i) { return max_scores<kEncodedUnit>(weights(u, i)); });
    for (std::uint32_t u = 0; u < count; ++u) {
      // Scores fetch the next keys and sums the next values; the softmax fetches values of one
      // page.
      const std::size_t bytes = step_.values.page_bytes, part = (bytes / n[u] + 63) / 64 * 64;
      const bool fetches = values[u].next_count > 0;
      const std::byte* ahead = fetches ? values[u].next[--values[u].next_count] : nullptr;
      by_fours(n[u], s_.unit_sum + u * pairs_, AddPair{}, [&](std::uint32_t i) {
        if (fetches && i * part < bytes) fetch_bytes(ahead + i * part, part);
        return softmax<kEncodedUnit>(s_.unit_max[u * pairs_ + i], weights(u, i),
                                     [](Floats x) { return exp_coarse(x); });
      });
    }
    for (std::uint32_t u = 0; u < count; ++u) {
      const std::uint32_t at = u * pairs_;
      merge_sums(s_.unit_max + at, s_.unit_sum + at, n[u], s_.split_max, s_.split_sum, s_.keep + at,
                 s_.take + at);
    }
    for (std::uint32_t u = 0; u < count; ++u)
      step_.kernels->add_values(values_, values[u], weights(u, 0), n[u], s_.keep + u * pairs_,
                                s_.take + u * pairs_, s_.split_out);
  }

  bool is_latent() const { return shape_.rotated != 0; }

  // Turns the latent part of a unit into keys, and adds its scores, which fetch the next latent part.
  void add_latent_scores(EncodedUnit& values, std::uint32_t n, float* dots) const {
    EncodedUnit latent = values;
    for (std::uint32_t i = 0; i < values.page_count; ++i) {
      std::byte* const to = own_.turned + i * step_.latent.page_bytes;
      step_.kernels->turn(values_, values.pages[i], to);
      latent.pages[i] = to;
    }
    values.next_count = 0;
    step_.kernels->scores(step_.latent, latent, own_.prepared_latent, n, own_.dots);
    for (std::size_t i = 0; i < std::size_t{n} * kEncodedUnit; i += 16)
      store(dots + i, add(load(own_.dots + i), load(dots + i)));
  }

  // Reduces vectors, four at a time: out[i] from vector(i). Writes up to three numbers past out[n].
  template <class Pair, class F>
  static void by_fours(std::uint32_t n, float* out, Pair pair, F vector) {
    for (std::uint32_t i = 0; i < n; i += 4) {
      Floats x[4] = {zero(), zero(), zero(), zero()};
      for (std::uint32_t k = 0; k < least(4u, n - i); ++k) x[k] = vector(i + k);
      _mm_storeu_ps(out + i, fold_four(x, pair));
    }
  }

  float* weights(std::uint32_t unit, std::uint32_t pair) const {
    return s_.weights + (unit * pairs_ + pair) * kEncodedUnit;
  }

  // Scores of slots that a row does not see.
  void mask_unit(std::uint32_t first, std::uint32_t rows, std::uint32_t unit) const {
    const std::uint32_t stop = least(run_.end, first + kEncodedUnit);
    for (std::uint32_t row = 0; row < rows; ++row) {
      const std::uint32_t from = most(row_begin(row), first);
      if (from == first && stop == first + kEncodedUnit) continue;
      for (std::uint32_t h = 0; h < heads_; ++h)
        mask_scores<kEncodedUnit>(from - first, stop - first, weights(unit, row * heads_ + h));
    }
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
  const std::size_t dim_, width_;                   // of a query head's result, and of its query
  const std::uint32_t pairs_, units_, unit_pages_;  // units that are taken at a time
  const AttendScratch s_;
  const SealedScratch own_;
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
  float* out =
      step.out + m.row * step.row_stride + std::size_t{m.kv_head} * heads * query_dim(shape);
  for (std::uint32_t h = 0; h < heads; ++h) {
    float top[16] = {kLowest}, sum[16] = {}, keep[16], take[16];  // element 0 of each is used
    float* to = out + h * query_dim(shape);
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
    if (step.sinks != nullptr) add_sinks(step.sinks + m.kv_head * heads + h, 1, dim, top, sum, to);
    finish(to, sum, 1, dim, to, dim);
  }
}

}  // namespace
}  // namespace quire
