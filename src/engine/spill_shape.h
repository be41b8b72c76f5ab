// engine/spill_shape.h - how a request with kv.resident divides the memory that it may hold.
//
//   |- ring: blocks that are being brought -|- held: its newest blocks, and those of the next step -|- other groups -|
//
// Cold blocks come into the ring segment by segment (kv/tier/block_segments.h): a slot holds the layers
// of one segment of one block.
//
//   TRY(SpillShape shape, spill_shape(geometry, {.resident_bytes = 8 << 20, .cache_bytes = ...}));
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kernels/geometry.h"
#include "kv/memory.h"

namespace quire {

// Where segments of a block go in an extent of the ring.
struct RingSlots {
  std::vector<std::uint32_t> segment_of;  // by layer of the group
  std::vector<std::uint64_t> at, bytes;   // by segment: within the block
  std::uint64_t stride = 0;               // of slots
  std::uint32_t per_block = 0;            // slots in an extent as large as a block
};
RingSlots ring_slots(const Geometry& geometry, std::uint32_t group);

struct SpillMemory {
  std::uint64_t resident_bytes = 0, cache_bytes = 0;
  std::size_t memory_page = kMemoryPage;
  std::uint32_t step_tokens = 512, window_tokens = 512;  // ExecutorTraits: rows_max, cold_tokens
};

struct SpillShape {
  std::uint32_t group = 0;                           // whose blocks become cold
  std::uint32_t ring_blocks = 0, window_blocks = 0;  // extents; blocks that are brought at once
  std::uint32_t held_blocks = 0;                     // of the group, the open one included
  std::uint32_t chunk_blocks = 0;                    // of these: that one step may begin
  std::uint64_t bytes = 0;                           // all of it

  std::uint32_t kept_blocks() const { return held_blocks - chunk_blocks - 1; }  // between steps
};
// An error says how many bytes would do.
Result<SpillShape> spill_shape(const Geometry& geometry, const SpillMemory& memory);

}  // namespace quire
