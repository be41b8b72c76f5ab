// kernels/attend.h - attention over paged keys and values, in one fixed order of sums.
//
// Slots are taken in units of kUnit, aligned to absolute slot numbers. For one query head and row, a unit gives
//   s[j] = scale * dot         dot: fma over the dimensions in order, f32, from 0;  masked slots do not take part
//   m = max s,  p[j] = exp(s[j] - m),  l = sum of p by 16 lanes (slot mod 16) and the tree of kernels/vector.h
//   o[d] = fma over the slots in order of p[j] * v[j][d], from 0
// Units merge left to right into their split of kSplit slots, finished splits merge left to right into the row:
//   merge (m, l, o) with (m', l', o'):  M = max(m, m'), a = exp(m - M), b = exp(m' - M),
//   l = fma(l', b, l * a),  o[d] = fma(o'[d], b, o[d] * a);   the first of a row or split is copied, not merged
// and the result is o[d] / l. Nothing depends on batch, chunk or thread count: a task may walk one split or all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/cpu.h"
#include "kernels/geometry.h"
#include "kernels/kv_view.h"

namespace quire {

inline constexpr std::uint32_t kAttendUnit = 64;
inline constexpr std::uint32_t kAttendSplit = 512;
inline constexpr std::uint32_t kAllSplits = 0xffffffffu;

// The layer at hand. All query heads of a KV head are taken together, so that each K/V byte is read once.
struct AttendShape {
  std::uint32_t query_heads, kv_heads, head_dim;
  float scale;
  RowType rows;              // element type of the pages (exact formats)
  std::uint32_t layer_index;  // within the group: lane = layer_index * kv_heads + kv_head
  std::size_t page_bytes, key_bytes;
};

struct AttendTask {
  std::uint32_t sequence, kv_head;
  std::uint32_t first_row, row_count;  // rows of the sequence, counted from its first
  std::uint32_t split;                 // one split of one row (row_count == 1), or kAllSplits
  std::uint32_t partial;               // where a single split leaves its (m, l, o); see partial_floats
};

struct AttendStep {
  KvView kv;
  AttendShape shape;
  const float* queries;  // [rows][query_heads * head_dim], rotated
  float* out;            // same shape
  std::size_t row_stride;
  float* partials;
};

// Floats one split partial takes: (m, l, o) for each query head of a KV head.
std::size_t partial_floats(const AttendShape& shape);

// The tasks of one step, for any thread count. Rows that see many slots are cut into splits, to be merged after all
// tasks are done; `split_rows` counts them. Returns how many partials are needed.
struct AttendPlan {
  std::vector<AttendTask> tasks;
  struct Merge { std::uint32_t sequence, kv_head, row, first_partial, partial_count; };
  std::vector<Merge> merges;
  std::uint32_t partial_count = 0;
};
void plan_attention(const KvView& kv, const AttendShape& shape, AttendPlan& plan);

struct AttendKernels {
  // Writes one row's key, or value, of one KV head into its page: slot is within the page. Rounds once, to the row type.
  // Separate, as the projection phase has them at different times.
  void (*store_key)(const AttendShape& shape, std::uint32_t tokens_per_block, const float* key, std::uint32_t slot,
                    std::byte* page);
  void (*store_value)(const AttendShape& shape, std::uint32_t tokens_per_block, const float* value,
                      std::uint32_t slot, std::byte* page);
  // `scratch` is the calling thread's own, attend_scratch_bytes long, 64-byte aligned.
  void (*attend)(const AttendStep& step, const AttendTask& task, std::byte* scratch);
  void (*merge)(const AttendStep& step, const AttendPlan::Merge& merge);
};

std::size_t attend_scratch_bytes(const AttendShape& shape);

const AttendKernels& attend_kernels(Isa isa);

}  // namespace quire
