// kernels/cpu/attend_impl.h - the walk of a task over its splits and units; attend_avx2.cc,
// attend_avx512.cc and attend_bf16.cc are this file. Rows that see a whole unit take it together,
// the others (at the diagonal, at a window's edge and where a lane ends) one by one.
#pragma once

#include "kernels/cpu/attend_latent.h"
#include "kernels/cpu/attend_narrow.h"
#include "kernels/kv_run.h"

namespace quire {
namespace {

inline void fill(float* x, std::size_t n, float value) {
  for (std::size_t i = 0; i < n; ++i) x[i] = value;
}

// Rows of these query heads take in their sinks, which have no value.
inline void add_sinks(const float* sinks, std::uint32_t n, std::size_t dim, float* top, float* sum,
                      float* out) {
  const float one = 1;
  for (std::uint32_t i = 0; i < n; ++i) {
    float keep, take;
    merge_sums(sinks + i, &one, 1, top + i, sum + i, &keep, &take);
    for (std::size_t d = i * dim; d < (i + 1) * dim; d += 16)
      store(out + d, mul(load(out + d), all(keep)));
  }
}

// out = o / l for n query heads, which are `stride` apart in out.
inline void finish(const float* o, const float* l, std::uint32_t n, std::size_t dim, float* out,
                   std::size_t stride) {
  for (std::uint32_t i = 0; i < n; ++i)
    for (std::size_t d = 0; d < dim; d += 16)
      store(out + i * stride + d, div(load(o + i * dim + d), all(l[i])));
}

template <class E, AttendArithmetic kArithmetic>
class Walk {
 public:
  Walk(const AttendStep& step, const AttendTask& task, std::byte* scratch)
      : step_(step),
        shape_(step.shape),
        task_(task),
        sequence_(step.kv.sequences[task.sequence]),
        heads_(shape_.query_heads / shape_.kv_heads),
        dim_(shape_.head_dim),
        width_(query_dim(shape_)),
        tokens_(step.kv.tokens_per_block),
        kv_head_(task.kv_head),
        s_(attend_scratch(reinterpret_cast<float*>(scratch), task.row_count * heads_, dim_,
                          shape_.rotated)),
        position_(sequence_.past + task.first_row) {}

  // Runs of slots, head by head. In a compacted sequence a head's lane comes before its table.
  void run() {
    const bool whole = task_.split == kAllSplits;
    if (sequence_.lanes != nullptr && !whole) leave_nothing();
    std::uint32_t number = next_run(0);
    if (number == kNoRun) return;
    next_ = run_at(number);
    Prefetch keys = prefetch(next_, next_.begin / kAttendUnit * kAttendUnit, 0);
    while (!keys.done()) keys.step();
    if (is_latent()) {
      Prefetch rows = prefetch(next_, next_.begin / kAttendUnit * kAttendUnit, shape_.key_bytes);
      while (!rows.done()) rows.step();
    }
    for (std::uint32_t started = kNoRun; number != kNoRun;) {
      if (started != number / 2) start_head(started = number / 2);
      run_ = next_;
      is_lane_ = number % 2 == 0;
      const std::uint32_t following = next_run(number + 1);
      next_ = following == kNoRun ? KvRun{run_.pages, 0, 0, 0, 0} : run_at(following);
      attend_run();
      if (whole && (following == kNoRun || following / 2 != started)) finish_head();
      number = following;
    }
  }

 private:
  static constexpr std::uint32_t kNoRun = ~0u;

  bool is_latent() const { return shape_.rotated != 0; }

  // Run 2 i is the lane of the task's head i, run 2 i + 1 its table, as far as the task's splits go.
  KvRun run_at(std::uint32_t number) const {
    const std::uint32_t lane = lane_of(shape_, task_.kv_head + number / 2);
    KvRun run = number % 2 == 0 ? lane_run(sequence_, lane)
                                : table_run(sequence_, lane, shape_.page_bytes, window_begin(0),
                                            position_ + task_.row_count);
    if (task_.split == kAllSplits) return run;
    const std::uint32_t first = task_.split - run.split_shift;  // below 0 if the lanes' come first
    const std::uint32_t end = first + task_.split_count;
    const bool before = first > 0x80000000u;
    run.begin = most(run.begin, before ? 0 : first * kAttendSplit);
    run.end = least(run.end, end > 0x80000000u ? 0 : end * kAttendSplit);
    return run;
  }
  std::uint32_t next_run(std::uint32_t number) const {
    for (; number < 2 * task_.kv_head_count; ++number) {
      const KvRun run = run_at(number);
      if (run.begin < run.end) return number;
    }
    return kNoRun;
  }

  void start_head(std::uint32_t index) {
    kv_head_ = task_.kv_head + index;
    const std::uint32_t pairs = task_.row_count * heads_;
    for (std::uint32_t i = 0; i < task_.row_count; ++i) take_queries(i);
    if (task_.split != kAllSplits) return;
    fill(s_.row_max, pairs, kLowest);
    fill(s_.row_sum, pairs, 0);
    fill(s_.row_out, pairs * dim_, 0);
  }

  void attend_run() {
    const std::uint32_t pairs = task_.row_count * heads_;
    for (std::uint32_t at = run_.begin; at < run_.end;) {
      const std::uint32_t stop = least(run_.end, (at / kAttendSplit + 1) * kAttendSplit);
      fill(s_.split_max, pairs, kLowest);
      fill(s_.split_sum, pairs, 0);
      fill(s_.split_out, pairs * dim_, 0);
      for (std::uint32_t unit = at / kAttendUnit * kAttendUnit; unit < stop; unit += kAttendUnit)
        attend_slots(unit);
      if (task_.split == kAllSplits)
        merge_split(at, stop);
      else
        leave_partials(at / kAttendSplit + run_.split_shift - task_.split);
      at = stop;
    }
  }

  void finish_head() {
    if (step_.sinks != nullptr)
      for (std::uint32_t i = 0; i < task_.row_count; ++i)
        add_sinks(step_.sinks + kv_head_ * heads_, heads_, dim_, s_.row_max + i * heads_,
                  s_.row_sum + i * heads_, s_.row_out + i * heads_ * dim_);
    for (std::uint32_t i = 0; i < task_.row_count; ++i)
      finish(s_.row_out + i * heads_ * dim_, s_.row_sum + i * heads_, heads_, dim_,
             step_.out + row_at(i), width_);
  }

  void take_queries(std::uint32_t row) {
    const float* from = step_.queries + row_at(row);
    if constexpr (kArithmetic == AttendArithmetic::narrow)
      for (std::uint32_t h = 0; h < heads_; ++h) {
        const std::size_t pair = row * heads_ + h;
        const float* const query = from + h * width_;
        std::uint32_t* const words = s_.query_words + pair * width_ / 2;
        s_.query_scale[pair] = word_query(query, shape_.scale, dim_, words);
        if (is_latent())
          s_.rotated_scale[pair] =
              word_query(query + dim_, shape_.scale, shape_.rotated, words + dim_ / 2);
      }
    else
      for (std::size_t d = 0; d < heads_ * width_; d += 16)
        store(s_.queries + row * heads_ * width_ + d, mul(all(shape_.scale), load(from + d)));
  }

  // Slots of the current run that a row sees. A row sees every slot of a lane.
  std::uint32_t row_end(std::uint32_t row) const {
    return is_lane_ ? run_.end : position_ + row + 1;
  }
  std::uint32_t row_begin(std::uint32_t row) const {
    return is_lane_ ? run_.begin : most(sequence_.ragged_until, window_begin(row));
  }
  std::uint32_t window_begin(std::uint32_t row) const {
    const std::uint32_t window = step_.kv.window, end = position_ + row + 1;
    return window != 0 && end > window ? end - window : 0;
  }
  std::size_t row_at(std::uint32_t row) const {
    return (sequence_.first_row + task_.first_row + row) * step_.row_stride +
           std::size_t{kv_head_} * heads_ * width_;
  }
  const char* page(const KvRun& run, std::uint32_t slot) const {
    return reinterpret_cast<const char*>(step_.kv.arena) + run.offset +
           static_cast<std::size_t>(run.pages[slot / tokens_]) * kArenaUnit;
  }

  // Slots [first, first + 64) as far as any row sees them. A group that no row sees is replaced by
  // one that some row sees; its scores are computed and masked.
  Unit<E> unit_at(std::uint32_t first) const {
    Unit<E> unit;
    const std::uint32_t from = most(run_.begin, first);
    const std::uint32_t to = least(run_.end, first + kAttendUnit) - 1;
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      const std::uint32_t slot = least(most(from / 16 * 16, first + 16 * g), to / 16 * 16);
      const char* here = page(run_, slot);
      unit.keys[g] = reinterpret_cast<const E*>(here) + slot % tokens_;
      unit.values[g] = reinterpret_cast<const E*>(here + shape_.key_bytes) + slot % tokens_ * dim_;
    }
    return unit;
  }

  // The keys of slots [first, first + 64), or, with `offset`, their values.
  Prefetch prefetch(const KvRun& run, std::uint32_t first, std::size_t offset) const {
    Prefetch next;
    next.part_bytes =
        is_latent() && offset != 0 ? shape_.key_bytes / shape_.rotated * dim_ : shape_.key_bytes;
    const std::uint32_t to = least(run.end, first + kAttendUnit);
    for (std::uint32_t slot = most(run.begin, first) / tokens_ * tokens_; slot < to;
         slot += tokens_)
      next.parts[next.count++] = page(run, slot) + offset;
    return next;
  }

  // What follows the unit at `first`: the next one's keys, the next run's, or nothing.
  Prefetch prefetch_next(std::uint32_t first, std::size_t offset) const {
    return first + kAttendUnit < run_.end
               ? prefetch(run_, first + kAttendUnit, offset)
               : prefetch(next_, next_.begin / kAttendUnit * kAttendUnit, offset);
  }

  void attend_slots(std::uint32_t first) {
    if constexpr (kArithmetic == AttendArithmetic::narrow)
      attend_narrow(first);
    else
      attend_wide(first);
  }

  void attend_wide(std::uint32_t first) {
    const Unit<E> unit = unit_at(first);
    Prefetch values = is_latent() ? prefetch_next(first, shape_.key_bytes)
                                  : prefetch(run_, first, shape_.key_bytes);
    Prefetch keys = prefetch_next(first, 0);
    Unit<E> turned;
    if (is_latent()) turned = turn_unit(unit, dim_, s_.turned);
    const Unit<E>* const latent = is_latent() ? &turned : nullptr;
    // Rows [whole_begin, whole_end) see all 64 slots: those that end late enough and begin early
    // enough.
    const std::uint32_t stop = first + kAttendUnit;
    std::uint32_t whole_begin = 0, whole_end = task_.row_count;
    while (whole_begin < whole_end && row_end(whole_begin) < stop) ++whole_begin;
    while (whole_begin < whole_end && row_begin(whole_end - 1) > first) --whole_end;
    if (whole_begin >= whole_end) whole_begin = whole_end = task_.row_count;
    const auto attend_row = [&](std::uint32_t row) {
      const std::uint32_t from = most(row_begin(row), first), to = least(row_end(row), stop);
      if (from < to)
        attend_unit(s_, shape_, tokens_, unit, latent, row * heads_, heads_, from - first,
                    to - first, values, keys);
    };
    for (std::uint32_t i = 0; i < whole_begin; ++i) attend_row(i);
    if (whole_begin < whole_end)
      attend_unit(s_, shape_, tokens_, unit, latent, whole_begin * heads_,
                  (whole_end - whole_begin) * heads_, 0, kAttendUnit, values, keys);
    for (std::uint32_t i = whole_end; i < task_.row_count; ++i) attend_row(i);
  }

  // Rows [begin, end), which see a part of the unit, take it together, each with its own mask. A
  // weight of 0 changes no sum unless the value is infinite or NaN; then rows are taken one by one.
  void attend_narrow(std::uint32_t first) {
    const std::uint32_t stop = first + kAttendUnit;
    std::uint32_t begin = 0, end = task_.row_count;
    while (begin < end && row_end(begin) <= first) ++begin;
    while (begin < end && row_begin(end - 1) >= stop) --end;
    if (begin == end) return;
    const Unit<E> unit = unit_at(first);
    const std::uint32_t from = most(row_begin(begin), first) - first;
    const std::uint32_t to = least(row_end(end - 1), stop) - first;
    Prefetch keys = prefetch_next(first, 0);
    Prefetch values = prefetch_next(first, shape_.key_bytes);
    KeyScales scales;
    const Unit<E> unit_keys = is_latent() ? turn_unit(unit, dim_, s_.turned) : unit;
    const std::size_t apart = is_latent() ? kAttendUnit : tokens_;
    scale_keys(unit_keys, dim_, apart, scales);
    const KeyRows<E> key_rows{unit_keys, scales, apart};
    if (begin + 1 == end && heads_ <= 6 && !is_latent()) {
      attend_rows(first, begin, end, scales, key_rows, ValueRows<E>{unit, dim_}, keys, values);
      return;
    }
    image_keys(key_rows, dim_, s_.key_image);
    if (is_latent()) {
      scale_keys(unit, shape_.rotated, tokens_, rotated_scales_);
      image_keys(KeyRows<E>{unit, rotated_scales_, tokens_}, shape_.rotated, rotated_image());
    }
    const KeyImage key_image{s_.key_image};
    image_values(unit, from / 16, (to + 15) / 16, dim_, s_.value_image);
    const Image image{s_.value_image, dim_};
    const bool all_whole = row_end(begin) >= stop && row_begin(end - 1) <= first;
    if (all_whole || begin + 1 == end || values_finite(s_.value_image, from, to, dim_)) {
      attend_rows(first, begin, end, scales, key_image, image, keys, values);
    } else {
      for (std::uint32_t row = begin; row < end; ++row)
        attend_rows(first, row, row + 1, scales, key_image, image, keys, values);
    }
  }

  template <class K, class V>
  void attend_rows(std::uint32_t first, std::uint32_t begin, std::uint32_t end,
                   const KeyScales& scales, const K& unit_keys, const V& unit_values,
                   Prefetch& keys, Prefetch& values) {
    constexpr std::size_t kWords = kAttendUnit / 2;
    const std::uint32_t stop = first + kAttendUnit;
    const std::uint32_t at = begin * heads_, n = (end - begin) * heads_;
    each_heads(n, [&](auto heads, std::uint32_t i) {
      word_scores<heads.value>(unit_keys, scales, s_.query_words + (at + i) * width_ / 2,
                               width_ / 2, s_.query_scale + at + i, dim_, keys,
                               s_.weights + i * kAttendUnit);
    });
    if (is_latent()) {
      float* const dots = s_.weights + std::size_t{n} * kAttendUnit;
      each_heads(n, [&](auto heads, std::uint32_t i) {
        word_scores<heads.value>(KeyImage{rotated_image()}, rotated_scales_,
                                 s_.query_words + ((at + i) * width_ + dim_) / 2, width_ / 2,
                                 s_.rotated_scale + at + i, shape_.rotated, keys,
                                 dots + i * kAttendUnit);
      });
      add_scores(dots, n, s_.weights);
    }
    if (shape_.softcap != 0) cap_scores(shape_.softcap, n, s_.weights);
    for (std::uint32_t row = begin; row < end; ++row) {
      if (row_begin(row) <= first && row_end(row) >= stop) continue;
      const std::uint32_t from = most(row_begin(row), first), to = least(row_end(row), stop);
      for (std::uint32_t h = 0; h < heads_; ++h)
        mask_scores(from - first, to - first,
                    s_.weights + ((row - begin) * heads_ + h) * kAttendUnit);
    }
    for (std::uint32_t i = 0; i < n; ++i)
      s_.unit_max[i] = largest_of(max_scores(s_.weights + i * kAttendUnit));
    for (std::uint32_t i = 0; i < n; ++i)
      s_.unit_sum[i] =
          narrow_softmax(s_.unit_max[i], s_.weights + i * kAttendUnit,
                         reinterpret_cast<std::uint16_t*>(s_.narrow_weights + i * kWords));
    merge_sums(s_.unit_max, s_.unit_sum, n, s_.split_max + at, s_.split_sum + at, s_.keep, s_.take);
    const std::uint32_t from = most(row_begin(begin), first) - first;
    const std::uint32_t to = least(row_end(end - 1), stop) - first;
    each_heads(n, [&](auto heads, std::uint32_t i) {
      narrow_outputs<heads.value>(unit_values, from, to, s_.narrow_weights + i * kWords, dim_,
                                  s_.keep + i, s_.take + i, values, s_.split_out + (at + i) * dim_);
    });
  }

  std::uint32_t* rotated_image() const { return s_.key_image + kAttendUnit / 2 * dim_; }

  // Rows that see any of slots [begin, end) merge their split into their result.
  void merge_split(std::uint32_t begin, std::uint32_t end) {
    std::uint32_t from = 0, to = task_.row_count;
    while (from < to && row_end(from) <= begin) ++from;
    while (from < to && row_begin(to - 1) >= end) --to;
    const std::uint32_t first = from * heads_, n = (to - from) * heads_;
    merge_sums(s_.split_max + first, s_.split_sum + first, n, s_.row_max + first,
               s_.row_sum + first, s_.keep, s_.take);
    merge_outputs(s_.split_out + first * dim_, n, dim_, s_.keep, s_.take,
                  s_.row_out + first * dim_);
  }

  float* partial_of(std::uint32_t row, std::uint32_t split) const {
    return step_.partials +
           (task_.partial + row * task_.partial_stride + split) * partial_floats(shape_);
  }

  // A lane may end before the task's splits do.
  void leave_nothing() {
    for (std::uint32_t i = 0; i < task_.row_count; ++i)
      for (std::uint32_t split = 0; split < task_.split_count; ++split)
        fill(partial_of(i, split) + heads_, heads_, 0);
  }

  void leave_partials(std::uint32_t split) {
    for (std::uint32_t i = 0; i < task_.row_count; ++i) {
      float* partial = partial_of(i, split);
      for (std::uint32_t h = 0; h < heads_; ++h) {
        partial[h] = s_.split_max[i * heads_ + h];
        partial[heads_ + h] = s_.split_sum[i * heads_ + h];
      }
      for (std::size_t d = 0; d < heads_ * dim_; d += 16)
        store(partial + 2 * heads_ + d, load(s_.split_out + i * heads_ * dim_ + d));
    }
  }

  const AttendStep& step_;
  const AttendShape& shape_;
  const AttendTask& task_;
  const KvSequenceView& sequence_;
  const std::uint32_t heads_;
  const std::size_t dim_, width_;  // of a query head's result, and of its query
  const std::uint32_t tokens_;
  std::uint32_t kv_head_;
  const AttendScratch s_;
  const std::uint32_t position_;  // of row 0
  KvRun run_{}, next_{};          // slots any row sees in this task; the run after it may be empty
  bool is_lane_ = false;
  KeyScales rotated_scales_;  // narrow latent attention: of the unit at hand
};

template <class E>
void attend_16(const AttendStep& step, const AttendTask& task, std::byte* scratch) {
  if (step.shape.arithmetic == AttendArithmetic::narrow)
    Walk<E, AttendArithmetic::narrow>(step, task, scratch).run();
  else
    Walk<E, AttendArithmetic::f32>(step, task, scratch).run();
}

void attend(const AttendStep& step, const AttendTask& task, std::byte* scratch) {
  switch (step.shape.rows) {
    case RowType::f32:
      return Walk<float, AttendArithmetic::f32>(step, task, scratch).run();
    case RowType::f16:
      return attend_16<F16>(step, task, scratch);
    case RowType::bf16:
      return attend_16<Bf16>(step, task, scratch);
  }
}

void merge(const AttendStep& step, const AttendPlan::Merge& m) {
  const AttendShape& shape = step.shape;
  const std::uint32_t heads = shape.query_heads / shape.kv_heads;
  const std::size_t dim = shape.head_dim;
  float* out = step.out + (step.kv.sequences[m.sequence].first_row + m.row) * step.row_stride +
               std::size_t{m.kv_head} * heads * query_dim(shape);
  const float* partials = step.partials + m.first_partial * partial_floats(shape);
  for (std::uint32_t h = 0; h < heads; ++h) {
    float top[16] = {kLowest}, sum[16] = {}, keep[16], take[16];  // element 0 of each is used
    float* const to = out + h * query_dim(shape);
    fill(to, dim, 0);
    for (std::uint32_t i = 0; i < m.partial_count; ++i) {
      const float* partial = partials + i * partial_floats(shape);
      if (partial[heads + h] == 0) continue;
      merge_sums(partial + h, partial + heads + h, 1, top, sum, keep, take);
      merge_outputs(partial + 2 * heads + h * dim, 1, dim, keep, take, to);
    }
    if (step.sinks != nullptr) add_sinks(step.sinks + m.kv_head * heads + h, 1, dim, top, sum, to);
    finish(to, sum, 1, dim, to, dim);
  }
}

inline std::uint16_t bf16_bits(float f) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>(bits >> 16 | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// Rounds 16 floats to the row type.
QUIRE_INLINE void round_16(const float* x, float* to) { store(to, load(x)); }
QUIRE_INLINE void round_16(const float* x, F16* to) { store(to, load(x)); }
QUIRE_INLINE void round_16(const float* x, Bf16* to) {
  for (int i = 0; i < 16; ++i) to[i] = static_cast<Bf16>(bf16_bits(x[i]));
}

template <class E>
void store_key_as(const AttendShape& s, std::size_t tokens, const float* key, std::uint32_t slot,
                  std::byte* page) {
  E* to = reinterpret_cast<E*>(page) + slot;
  for (std::size_t d = 0; d < key_dim(s); d += 16) {
    E row[16];
    round_16(key + d, row);
    for (int i = 0; i < 16; ++i) to[(d + i) * tokens] = row[i];
  }
}

template <class E>
void store_value_as(const AttendShape& s, const float* value, std::uint32_t slot, std::byte* page) {
  E* to = reinterpret_cast<E*>(page + s.key_bytes) + std::size_t{slot} * s.head_dim;
  for (std::size_t d = 0; d < s.head_dim; d += 16) {
    float row[16];
    store(row, load(value + d));
    if constexpr (__is_same(E, Bf16))
      for (float& x : row) x = __builtin_fabsf(x) < kBf16ValueMin ? 0 : x;
    round_16(row, to + d);
  }
}

void store_key(const AttendShape& s, std::uint32_t tokens, const float* key, std::uint32_t slot,
               std::byte* page) {
  switch (s.rows) {
    case RowType::f32:
      return store_key_as<float>(s, tokens, key, slot, page);
    case RowType::f16:
      return store_key_as<F16>(s, tokens, key, slot, page);
    case RowType::bf16:
      return store_key_as<Bf16>(s, tokens, key, slot, page);
  }
}

void store_value(const AttendShape& s, std::uint32_t, const float* value, std::uint32_t slot,
                 std::byte* page) {
  switch (s.rows) {
    case RowType::f32:
      return store_value_as<float>(s, value, slot, page);
    case RowType::f16:
      return store_value_as<F16>(s, value, slot, page);
    case RowType::bf16:
      return store_value_as<Bf16>(s, value, slot, page);
  }
}

}  // namespace
}  // namespace quire
