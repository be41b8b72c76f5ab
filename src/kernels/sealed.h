// kernels/sealed.h - attention where the blocks before a row's own are encoded.
//
// A row reads its own block, the `recent` blocks before it and the first `sinks` blocks as rows
// (they lie in pages of the row type). It reads every other block before it encoded. The encoded
// part is taken in units and splits of absolute slots, as in attend.h, but with the arithmetic of
// encoded.h and with weights by the coarse exp of terms.h. The rows, sinks first, are a short
// sequence of their own for the kernels of attend.h. For one row and query head:
//   e = splits of encoded slots, merged left to right, then rotated out of the codec's basis
//   result = e merged with the splits of its rows, left to right;  o / l
// Lanes of a compacted sequence are encoded and come before the encoded part of the table. Tokens
// that are read as rows (sinks, recent ones) are not in lanes.
// The position of a row alone decides which blocks it reads encoded, so chunks, batches and cache
// hits change nothing.
//
// One step of a layer group:
//
//   plan_sealed(kv, sequences, shape, plan);
//   for (task : plan.encoded) kernels.attend_sealed(step, task, scratch);  // any thread, any order
//   for (rows : {plan.kept, plan.passing})
//     for (task : rows.tasks) kernels.attend(...);                         // any thread, any order
//   for (merge : plan.merges) kernels.merge_sealed(step, merge);           // after all of them
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attend.h"
#include "kernels/encoded.h"

namespace quire {

// Where the rows of one sequence of a step lie.
struct RowBlocks {
  const ArenaOffset* blocks;     // of the recent group; kNoBlock: scratch
  std::uint32_t scratch_begin;   // the first block of the sequence that may be scratch, and
  std::uint32_t scratch_number;  // which scratch block that one is
};

struct SealedShape {
  AttendShape encoded;  // page_bytes and key_bytes of encoded pages
  AttendShape rows;     // of pages of rows
  std::uint32_t recent_blocks, sink_blocks;
  std::uint32_t scratch_stride;  // from one scratch block to the next, as an ArenaOffset
  bool rows_only = false;        // what is encoded is planned elsewhere (kernels/streamed.h)
};

struct SealedStep {
  KvView kv;  // of the lossy group
  AttendShape shape;
  EncodedPart keys, values;
  const EncodedKernels* kernels;
  std::uint32_t recent_blocks, sink_blocks;
  const float* queries;
  float* out;
  std::size_t row_stride;
  float* partials;
  const float* sinks = nullptr;  // as in AttendStep
};

struct SealedMerge {
  std::uint32_t row;  // of the step
  std::uint32_t kv_head;
  std::uint32_t encoded_first, encoded_count;  // partials; none for a row whose reach is all rows
  std::uint32_t rows_first, rows_count;
};

struct SealedPlan {
  // Rows of these tasks lie in one block each. A task that takes all splits leaves one partial per
  // row.
  std::vector<AttendTask> encoded;
  // Rows that stay in the cache, and those that are scratch of the step.
  struct Rows {
    std::vector<KvSequenceView> sequences;
    std::vector<ArenaOffset> tables;
    std::vector<AttendTask> tasks;
    KvView view;
  } kept, passing;
  std::vector<SealedMerge> merges;
  std::uint32_t partial_count = 0;
  std::uint32_t threads = 8;  // set before planning; only balance depends on it
};

// kv: the lossy group; rows: where the rows of its sequences are, in the same order.
void plan_sealed(const KvView& kv, std::span<const RowBlocks> rows, const SealedShape& shape,
                 SealedPlan& plan);

std::size_t sealed_scratch_bytes(const SealedStep& step);

// Encoded slots that a row at this position reads.
struct SealedReach {
  std::uint32_t begin, end;
};
inline SealedReach sealed_reach(std::uint32_t position, std::uint32_t tokens_per_block,
                                std::uint32_t window, std::uint32_t recent_blocks,
                                std::uint32_t sink_blocks) {
  const std::uint32_t block = position / tokens_per_block;
  const std::uint32_t end = (block - (block < recent_blocks ? block : recent_blocks));
  // A row with a window has no sinks.
  const std::uint32_t begin = window == 0             ? sink_blocks * tokens_per_block
                              : position + 1 > window ? position + 1 - window
                                                      : 0;
  const std::uint32_t end_slot = end * tokens_per_block;
  return {begin < end_slot ? begin : end_slot, end_slot};
}

}  // namespace quire
