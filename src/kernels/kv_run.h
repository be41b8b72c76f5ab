// kernels/kv_run.h - a sequence as one lane reads it: first the compacted tokens that the lane
// kept, then the table. Shared by the planners of attention and by all its kernels.
//
// Tasks number the splits of both. Splits of lanes come first; there are as many as the longest
// lane of the group has, so that one plan serves every layer, and the last ones are empty in a
// shorter lane. Splits of the table follow, beginning with the one that holds ragged_until. A
// sequence without lanes has the splits of its absolute slots.
#pragma once

#include "kernels/attend.h"

namespace quire {

struct SplitNumbers {
  std::uint32_t lanes;  // splits of the longest lane
  std::uint32_t table;  // what is added to slot / kAttendSplit; may wrap around
};

// Slot s of the run lies in pages[s / P], `offset` bytes after its start.
struct KvRun {
  const ArenaOffset* pages;
  std::size_t offset;
  std::uint32_t begin, end;   // slots: the lane's own, or absolute ones of the table
  std::uint32_t split_shift;  // what is added to slot / kAttendSplit
};

namespace {  // kernels include this under flags of their own

// Of one query head; and of what store_key writes.
inline std::uint32_t query_dim(const AttendShape& s) { return s.head_dim + s.rotated; }
inline std::uint32_t key_dim(const AttendShape& s) {
  return s.rotated != 0 ? s.rotated : s.head_dim;
}
// The lane of a group that a KV head reads. In latent attention KV heads are parts of the query heads.
inline std::uint32_t lane_of(const AttendShape& s, std::uint32_t kv_head) {
  return s.rotated != 0 ? s.layer_index : s.layer_index * s.kv_heads + kv_head;
}

inline std::uint32_t split_of(const SplitNumbers& n, std::uint32_t slot) {
  return slot / kAttendSplit + n.table;
}
// The first split of rows that see all of the lanes and the table from `first_slot` on.
inline std::uint32_t first_split(const SplitNumbers& n, std::uint32_t first_slot) {
  return n.lanes > 0 ? 0 : split_of(n, first_slot);
}
inline std::uint32_t end_split(const SplitNumbers& n, std::uint32_t first_slot,
                               std::uint32_t end_slot) {
  return first_slot < end_slot ? split_of(n, end_slot - 1) + 1
                               : first_split(n, first_slot) + n.lanes;
}

inline SplitNumbers split_numbers(const KvSequenceView& s) {
  const std::uint32_t lanes = (s.lane_slots_max + kAttendSplit - 1) / kAttendSplit;
  return {lanes, lanes - s.ragged_until / kAttendSplit};
}

inline KvRun lane_run(const KvSequenceView& s, std::uint32_t lane) {
  if (s.lanes == nullptr) return {nullptr, 0, 0, 0, 0};
  return {s.lanes[lane].pages, s.lanes[lane].offset, 0, s.lanes[lane].slots, 0};
}
// Slots [begin, end) of the table, without those before ragged_until.
inline KvRun table_run(const KvSequenceView& s, std::uint32_t lane, std::size_t page_bytes,
                       std::uint32_t begin, std::uint32_t end) {
  return {s.blocks, lane * page_bytes, begin > s.ragged_until ? begin : s.ragged_until, end,
          split_numbers(s).table};
}

}  // namespace
}  // namespace quire
