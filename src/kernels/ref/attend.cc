#include "kernels/attend.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/half.h"
#include "kernels/kv_run.h"
#include "kernels/ref/math.h"
#include "kernels/ref/partial.h"
#include "kernels/ref/row_type.h"
#include "kernels/terms.h"

namespace quire {
namespace {

using ref::Partial;
using ref::read;

void write(RowType type, std::byte* base, std::size_t i, float value) {
  if (type == RowType::f32) {
    std::memcpy(base + 4 * i, &value, 4);
    return;
  }
  const std::uint16_t bits = type == RowType::f16 ? f32_to_f16(value) : f32_to_bf16(value);
  std::memcpy(base + 2 * i, &bits, 2);
}

void store_key(const AttendShape& s, std::uint32_t tokens_per_block, const float* key,
               std::uint32_t slot, std::byte* page) {
  for (std::uint32_t d = 0; d < key_dim(s); ++d)
    write(s.rows, page, std::size_t{d} * tokens_per_block + slot, key[d]);
}

void store_value(const AttendShape& s, std::uint32_t, const float* value, std::uint32_t slot,
                 std::byte* page) {
  for (std::uint32_t d = 0; d < s.head_dim; ++d)
    write(s.rows, page + s.key_bytes, std::size_t{slot} * s.head_dim + d,
          s.rows == RowType::bf16 && std::fabs(value[d]) < kBf16ValueMin ? 0 : value[d]);
}

bool narrow(const AttendShape& s) { return s.arithmetic == AttendArithmetic::narrow; }

// As the arithmetic at hand takes a weight or a value.
float narrowed(const AttendShape& s, float x) {
  return narrow(s) ? bf16_to_f32(f32_to_bf16(x)) : x;
}

struct Lane {
  const AttendStep& step;
  const KvRun run;

  const std::byte* page(std::uint32_t slot) const {
    return arena_at(step.kv.arena, run.pages[slot / step.kv.tokens_per_block]) + run.offset;
  }
};

// One query, or a part of it, as the arithmetic at hand takes it: times s.scale, in floats or in
// integers.
struct Query {
  const float* from;
  std::uint32_t dim;
  const std::int32_t* words = nullptr;
  float word_scale = 0;
};

Query take_query(const AttendShape& s, const float* from, std::uint32_t dim, std::int32_t* words) {
  if (!narrow(s)) return {from, dim};
  float top = 0;
  bool finite = true;
  for (std::uint32_t d = 0; d < dim; ++d) {
    top = std::max(top, std::fabs(s.scale * from[d]));
    finite &= std::isfinite(s.scale * from[d]);
  }
  const float up = top < kQueryMin ? 0 : kQueryUnits / top;
  for (std::uint32_t d = 0; d < dim; ++d)
    words[d] = finite ? static_cast<std::int32_t>(std::nearbyint(s.scale * from[d] * up)) : 0;
  return {from, dim, words, finite ? top / kQueryUnits : std::numeric_limits<float>::quiet_NaN()};
}

// key(d) is element d of what the query meets.
template <class Key>
float dot_of(const AttendShape& s, const Query& q, Key key) {
  float dot = 0;
  if (!narrow(s)) {
    for (std::uint32_t d = 0; d < q.dim; ++d) dot = std::fma(s.scale * q.from[d], key(d), dot);
    return dot;
  }
  float top = 0;
  for (std::uint32_t d = 0; d < q.dim; ++d) {
    if (!std::isfinite(key(d))) return std::numeric_limits<float>::quiet_NaN();
    top = std::max(top, std::fabs(key(d)));
  }
  const float power =
      std::max(std::bit_cast<float>(std::bit_cast<std::uint32_t>(top) & 0x7f800000u), kKeyPowerMin);
  for (std::uint32_t first = 0; first < q.dim; first += kScoreRun) {
    std::int32_t sum = 0;
    for (std::uint32_t d = first; d < std::min(q.dim, first + kScoreRun); ++d)
      sum += q.words[d] * static_cast<std::int32_t>(std::nearbyint(key(d) * (kKeyUnits / power)));
    dot += static_cast<float>(sum);
  }
  return dot * (power * (1 / kKeyUnits)) * q.word_scale;
}

// A query, and of latent attention its rotated part.
struct Queries {
  Query query, rotated;
};

// `slot` is within the page.
float score(const AttendShape& s, const Queries& q, const std::byte* page, std::uint32_t tokens,
            std::uint32_t slot) {
  const auto key = [&](std::uint32_t d) {
    return read(s.rows, page, std::size_t{d} * tokens + slot);
  };
  if (s.rotated == 0) return dot_of(s, q.query, key);
  const float latent = dot_of(s, q.query, [&](std::uint32_t d) {
    return read(s.rows, page + s.key_bytes, std::size_t{slot} * s.head_dim + d);
  });
  return latent + dot_of(s, q.rotated, key);
}

// Slots [begin, end), all in one unit.
void attend_unit(const Lane& lane, const Queries& query, std::uint32_t begin, std::uint32_t end,
                 Partial& unit) {
  const AttendShape& s = lane.step.shape;
  const std::uint32_t tokens = lane.step.kv.tokens_per_block;
  const std::uint32_t swap = narrow(s) ? 1 : 0;
  float weights[kAttendUnit];
  unit.clear(s.head_dim);
  for (std::uint32_t slot = begin; slot < end; ++slot) {
    float dot = score(s, query, lane.page(slot), tokens, slot % tokens);
    if (s.softcap != 0) dot = s.softcap * ref::tanh(dot * (1.0f / s.softcap));
    weights[slot - begin] = dot;
    unit.max = std::max(unit.max, dot);
  }
  float sums[16] = {};
  for (std::uint32_t slot = begin; slot < end; ++slot) {
    float& weight = weights[slot - begin];
    const float x = weight - unit.max;
    weight = swap == 1 && x < kNarrowExpMin ? 0 : ref::exp(x);
    sums[slot % 16] += weight;
  }
  for (std::uint32_t i = begin / 2 * 2; i < (end + 1) / 2 * 2; ++i) {
    const std::uint32_t slot = i ^ swap;
    if (slot < begin || slot >= end) continue;
    const float p = narrowed(s, weights[slot - begin]);
    const std::byte* values = lane.page(slot) + s.key_bytes;
    for (std::uint32_t d = 0; d < s.head_dim; ++d)
      unit.out[d] = std::fma(
          p, narrowed(s, read(s.rows, values, std::size_t{slot % tokens} * s.head_dim + d)),
          unit.out[d]);
  }
  unit.sum = ref::add_tree(sums);
}

// Slots [begin, end), all in one split.
void attend_split(const Lane& lane, const Queries& query, std::uint32_t begin, std::uint32_t end,
                  Partial& unit, Partial& split) {
  split.clear(lane.step.shape.head_dim);
  for (std::uint32_t from = begin; from < end;) {
    const std::uint32_t to = std::min(end, from / kAttendUnit * kAttendUnit + kAttendUnit);
    attend_unit(lane, query, from, to, unit);
    split.merge(unit, lane.step.shape.head_dim);
    from = to;
  }
}

void finish(const Partial& row, std::uint32_t dim, float* out) {
  for (std::uint32_t d = 0; d < dim; ++d) out[d] = row.out[d] / row.sum;
}

void attend_head(const AttendStep& step, const AttendTask& task, std::uint32_t kv_head,
                 std::byte* scratch) {
  const AttendShape& s = step.shape;
  const KvSequenceView& sequence = step.kv.sequences[task.sequence];
  const std::uint32_t heads = s.query_heads / s.kv_heads, dim = s.head_dim;
  const std::uint32_t number = lane_of(s, kv_head);
  const bool whole = task.split == kAllSplits;
  float* work = reinterpret_cast<float*>(scratch);
  Partial unit{.out = work}, split{.out = work + dim}, row{.out = work + 2 * dim};
  for (std::uint32_t i = 0; i < task.row_count; ++i) {
    const std::uint32_t end = sequence.past + task.first_row + i + 1;
    const std::uint32_t begin = step.kv.window != 0 ? end - std::min(end, step.kv.window) : 0;
    for (std::uint32_t head = 0; head < heads; ++head) {
      const std::size_t at = (sequence.first_row + task.first_row + i) * step.row_stride +
                             std::size_t{kv_head * heads + head} * query_dim(s);
      auto* words = reinterpret_cast<std::int32_t*>(work + 3 * dim);
      const Queries query{take_query(s, step.queries + at, dim, words),
                          take_query(s, step.queries + at + dim, s.rotated, words + dim)};
      const auto partial_of = [&](std::uint32_t index) {
        return step.partials +
               (task.partial + i * task.partial_stride + index - task.split) * partial_floats(s);
      };
      for (std::uint32_t index = task.split; !whole && index < task.split + task.split_count;
           ++index)
        partial_of(index)[heads + head] = 0;
      row.clear(dim);
      for (const KvRun& run :
           {lane_run(sequence, number), table_run(sequence, number, s.page_bytes, begin, end)}) {
        const Lane lane{step, run};
        for (std::uint32_t from = run.begin; from < run.end;) {
          const std::uint32_t index = from / kAttendSplit + run.split_shift;
          const std::uint32_t to =
              std::min(run.end, from / kAttendSplit * kAttendSplit + kAttendSplit);
          if (whole || index - task.split < task.split_count) {
            attend_split(lane, query, from, to, unit, split);
            if (whole)
              row.merge(split, dim);
            else
              split.leave(partial_of(index), head, heads, dim);
          }
          from = to;
        }
      }
      if (whole && step.sinks != nullptr) row.add_sink(step.sinks[kv_head * heads + head], dim);
      if (whole) finish(row, dim, step.out + at);
    }
  }
}

void attend(const AttendStep& step, const AttendTask& task, std::byte* scratch) {
  for (std::uint32_t i = 0; i < task.kv_head_count; ++i)
    attend_head(step, task, task.kv_head + i, scratch);
}

void merge(const AttendStep& step, const AttendPlan::Merge& m) {
  const AttendShape& s = step.shape;
  const std::uint32_t heads = s.query_heads / s.kv_heads, dim = s.head_dim;
  for (std::uint32_t head = 0; head < heads; ++head) {
    float* out = step.out + (step.kv.sequences[m.sequence].first_row + m.row) * step.row_stride +
                 std::size_t{m.kv_head * heads + head} * query_dim(s);
    Partial row{.out = out};
    row.clear(dim);
    for (std::uint32_t i = 0; i < m.partial_count; ++i) {
      float* partial = step.partials + (m.first_partial + i) * partial_floats(s);
      if (partial[heads + head] == 0) continue;
      row.merge({partial[head], partial[heads + head], partial + 2 * heads + head * dim}, dim);
    }
    if (step.sinks != nullptr) row.add_sink(step.sinks[m.kv_head * heads + head], dim);
    finish(row, dim, out);
  }
}

}  // namespace

extern const AttendKernels kAttendScalar = {store_key, store_value,        attend,
                                            merge,     ref::attend_sealed, ref::merge_sealed};

}  // namespace quire
