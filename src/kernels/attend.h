// kernels/attend.h - attention over paged keys and values, in one fixed order of sums.
//
// Slots are taken in units of kAttendUnit, aligned to absolute slot numbers. For one query head and
// row, a unit gives
//   s[j] = dot(scale * q, k[j])      slots the row does not see take no part
//   m = max s,  p[j] = exp(s[j] - m),  l = sum of p as 16 partial sums (slot mod 16) and the tree of
//   kernels/vector.h,  o[d] = fma over the slots in order of p[j] * v[j][d], from 0
// Units merge left to right into their split of kAttendSplit slots, splits left to right into the
// row; a split and a row start as (-inf, 0, 0):
//   merge (m, l, o) with (m', l', o'):  M = max(m, m'), a = exp(m - M), b = exp(m' - M),
//   l = fma(l', b, l * a),  o[d] = fma(o'[d], b, o[d] * a)
// and the result is o[d] / l.
//
// Two options, which models without them do not pay for. With a soft cap each s[j] becomes
// cap * tanh(s[j] / cap). With sinks a row merges (sink of its query head, 1, 0) last: a learned score
// that has no value. First or in between would not do, as encoded splits may merge among themselves.
//
// Latent attention (MLA): a slot has one row of two parts, which all query heads share. The latent part
// lies where values do ([slot][head_dim]), the rotated part where keys do ([rotated][slot]). A query has
// head_dim numbers for the latent part, then `rotated` ones. Its score is the dot of the latent part
// plus the dot of the rotated part, each as above (and with scales of its own where narrow); the value
// is the latent part. Results lie as far apart as queries: the last `rotated` numbers of a head in
// `out` are left alone. As one lane has up to 128 query heads, they are taken in kv_heads parts, all of
// which read that lane: a query head's sums do not depend on how many there are.
//
// A compacted sequence (kv_view.h) is summed over its lane first and then over its table. Units and
// splits of the lane are counted from lane slot 0, those of the table from absolute slot 0; all of
// them merge left to right. A unit or split without slots is left out. A lane that keeps every
// token in whole splits therefore gives the bits of the full cache.
//
// In the f32 arithmetic dot is an fma over the dimensions in order, from 0. The narrow arithmetic,
// for rows of 16 bits, is twice as fast where the machine has 16-bit products:
//   dot    of integers. With x = scale * q and t = max |x|, a query is round(x * (4095 / t)); with
//          2^e the power of two at or below max |k|, a key is round(k * (4096 / 2^e)). Products are
//          summed in 32 bits, which cannot overflow over kScoreRun dimensions; runs are added as
//          floats, in order, then times 2^e / 4096, then times t / 4095. Keys of f16 lose nothing in
//          their largest elements. (Keys in bf16 were tried: scores moved too far.)
//   p, v   where they are multiplied are rounded to bf16, slots are taken in pairs, the odd one
//          before the even one (1, 0, 3, 2, ...), and p is 0 below 2^-64. With values of at least
//          2^-26 (f16 has no smaller ones, store_value makes it so in bf16) no sum is ever
//          subnormal; VDPBF16PS would flush subnormals.
//
// Nothing depends on batch, chunk or thread count: a task may walk one split or all, one row or
// many. Slots that a row does not see are never multiplied, so they may hold anything, even NaN.
//
// One step, once its keys and values are stored (the plan serves every layer of the group):
//
//   plan_attention(kv, shape, plan);    // partials: plan.partial_count * partial_floats
//   for (task : plan.tasks) kernels.attend(step, task, scratch);   // any thread, any order
//   for (merge : plan.merges) kernels.merge(step, merge);          // after all tasks; often none
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/cpu.h"
#include "kernels/geometry.h"
#include "kernels/kv_view.h"

namespace quire {

inline constexpr std::uint32_t kAttendVersion = 3;  // bumped when the bits of an answer may change
inline constexpr std::uint32_t kAttendUnit = 64;
inline constexpr std::uint32_t kAttendSplit = 512;
inline constexpr float kBf16ValueMin = 0x1p-26f;  // smaller ones are stored as 0 in rows of bf16
inline constexpr std::uint32_t kAllSplits = 0xffffffffu;

enum class AttendArithmetic : std::uint8_t { f32, narrow };

// The shape of the current layer. All query heads of a KV head are taken together, so that each K/V
// byte is read once.
struct AttendShape {
  std::uint32_t query_heads, kv_heads, head_dim;
  float scale;
  RowType rows;                                         // element type of the pages (exact formats)
  AttendArithmetic arithmetic = AttendArithmetic::f32;  // narrow only for rows of 16 bits
  std::uint32_t layer_index;  // within the group: lane = layer_index * kv_heads + kv_head
  std::size_t page_bytes, key_bytes;
  float softcap = 0;  // 0: none
  std::uint32_t rotated =
      0;  // latent attention: numbers of the rotated part; 0: ordinary attention
};

struct AttendTask {
  std::uint32_t sequence;
  std::uint32_t kv_head,
      kv_head_count;                   // one head after the other; just one if the task has splits
  std::uint32_t first_row, row_count;  // counted from the sequence's first; attend_rows_max at most
  std::uint32_t split, split_count;    // splits it leaves as partials (kv_run.h), or kAllSplits
  std::uint32_t partial;               // where `split` of first_row goes; the next split's follows
  std::uint32_t partial_stride;        // from one row's partials to the next row's
  std::uint32_t cost;                  // slots its rows see in it: what the plan is sorted by
};

struct AttendStep {
  KvView kv;
  AttendShape shape;
  const float* queries;  // [rows][query_heads * query_dim], rotated (kv_run.h: query_dim)
  float* out;            // same shape
  std::size_t row_stride;
  float* partials;
  const float* sinks = nullptr;  // by query head; null: none
};

// Rows one task may hold.
std::uint32_t attend_rows_max(const AttendShape& shape);

// The number of floats of one split partial: (m, l, o) for each query head of a KV head. Where a
// lane has no slots in a split, l is 0 and m and o are undefined.
std::size_t partial_floats(const AttendShape& shape);

// The tasks of one step, longest first, for any thread count. Few rows that see many slots are cut
// into splits, which are merged after all tasks are done. Neighbouring sequences whose tables begin
// with the same blocks read these blocks once: a task may then hold rows of several sequences,
// counted from the first row of the first. A plan depends on the shape's heads only, so it serves
// all layers.
struct AttendPlan {
  std::uint32_t threads = 8;  // set before planning; only balance depends on it
  std::vector<AttendTask> tasks;
  struct Merge {
    std::uint32_t sequence, kv_head, row, first_partial, partial_count;
  };
  std::vector<Merge> merges;
  std::uint32_t partial_count = 0;
  struct Part {  // rows that are planned together
    std::uint32_t sequence, first, count;
  };
  std::vector<Part> parts;  // scratch of the planner
};
void plan_attention(const KvView& kv, const AttendShape& shape, AttendPlan& plan);

struct SealedStep;
struct SealedMerge;

struct AttendKernels {
  // Writes one row's key, or value, of one KV head into slot `slot` of its page. Rounds once, to
  // the row type. Two functions, because the projection phase has keys and values at different
  // times.
  void (*store_key)(const AttendShape& shape, std::uint32_t tokens_per_block, const float* key,
                    std::uint32_t slot, std::byte* page);
  void (*store_value)(const AttendShape& shape, std::uint32_t tokens_per_block, const float* value,
                      std::uint32_t slot, std::byte* page);
  // `scratch` is the calling thread's own, attend_scratch_bytes long, 64-byte aligned.
  void (*attend)(const AttendStep& step, const AttendTask& task, std::byte* scratch);
  void (*merge)(const AttendStep& step, const AttendPlan::Merge& merge);
  // The same where earlier blocks are encoded: kernels/sealed.h. Scratch is sealed_scratch_bytes.
  void (*attend_sealed)(const SealedStep& step, const AttendTask& task, std::byte* scratch);
  void (*merge_sealed)(const SealedStep& step, const SealedMerge& merge);
};

std::size_t attend_scratch_bytes(const AttendShape& shape);

const AttendKernels& attend_kernels(Isa isa);

extern const AttendKernels kAttendScalar, kAttendAvx2, kAttendAvx512,
    kAttendBf16;  // by attend_kernels

}  // namespace quire
