#include "engine/spill_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/kv_view.h"
#include "kv/slab_shape.h"
#include "kv/tier/tier_link.h"

namespace quire {
namespace {

constexpr std::uint64_t kRingBytesMax = 64 << 20;
constexpr std::uint32_t kHeldLeast = 4;        // the open block, and one that is written before it
constexpr std::uint32_t kWindowSplitsMax = 8;  // partials of a step are kept for so many

std::uint64_t round_up(std::uint64_t n, std::uint64_t unit) { return (n + unit - 1) / unit * unit; }

std::uint64_t slabs(std::uint64_t block_bytes, std::uint64_t blocks, const SpillMemory& m) {
  const SlabShape slab = slab_shape(block_bytes, m.cache_bytes, m.memory_page);
  return (blocks + slab.capacity - 1) / slab.capacity * slab.bytes;
}

// What the groups whose blocks do not become cold need for a chunk.
std::uint64_t beside(const Geometry& g, std::uint32_t group, std::uint32_t chunk,
                     const SpillMemory& m) {
  std::uint64_t bytes = 0;
  for (std::uint32_t i = 0; i < g.groups.size(); ++i) {
    const LayerGroup& other = g.groups[i];
    if (i == group) continue;
    const std::uint64_t blocks =
        other.open_only() ? 3
        : other.kind == GroupKind::recent
            ? other.recent_blocks + other.sink_blocks + chunk + 3
            : round_up(other.window, g.tokens_per_block) / g.tokens_per_block + chunk + 3;
    bytes += slabs(g.block_bytes(other), blocks, m);
  }
  return bytes;
}

}  // namespace

RingSlots ring_slots(const Geometry& geometry, std::uint32_t group) {
  RingSlots slots;
  std::uint64_t at = 0, most = 0, shift = 0;
  for (const RecordSegment& s : TierLink::segments(geometry, group)) {
    slots.segment_of.insert(slots.segment_of.end(), s.layers,
                            static_cast<std::uint32_t>(slots.at.size()));
    slots.at.push_back(at);
    slots.bytes.push_back(s.bytes);
    most = std::max(most, s.bytes);
    shift = std::max(shift, at % kArenaUnit);  // what a table entry cannot say
    at += s.bytes;
  }
  slots.stride = round_up(most + shift, kArenaUnit);
  slots.per_block =
      static_cast<std::uint32_t>(geometry.block_bytes(geometry.groups[group]) / slots.stride);
  return slots;
}

Result<SpillShape> spill_shape(const Geometry& geometry, const SpillMemory& memory) {
  const auto chain = std::ranges::find(geometry.groups, GroupKind::full, &LayerGroup::kind);
  if (chain == geometry.groups.end())
    return Error{Code::unsupported, "no layer of this model reads everything before it"};
  SpillShape shape{.group = static_cast<std::uint32_t>(chain - geometry.groups.begin())};
  const std::uint64_t block_bytes = geometry.block_bytes(*chain);
  const RingSlots slots = ring_slots(geometry, shape.group);
  if (slots.per_block == 0)
    return Error{Code::unsupported, "blocks of this model are too small to be brought in parts"};
  const std::uint32_t split = std::max(1u, memory.window_tokens / geometry.tokens_per_block);
  const std::uint32_t ring_least = (split + slots.per_block - 1) / slots.per_block;
  const std::uint32_t chunk_most = std::max(1u, memory.step_tokens / geometry.tokens_per_block);
  const std::uint64_t bytes = std::min(memory.resident_bytes, memory.cache_bytes);
  const SlabShape slab = slab_shape(block_bytes, memory.cache_bytes, memory.memory_page);
  for (std::uint32_t chunk = chunk_most; chunk > 0; chunk /= 2) {
    const std::uint64_t other = beside(geometry, shape.group, chunk, memory);
    const auto blocks = static_cast<std::uint32_t>(std::min<std::uint64_t>(
        bytes > other ? (bytes - other) / slab.bytes * slab.capacity : 0, 1u << 30));
    if (blocks < ring_least + kHeldLeast) continue;
    const auto ring_most = static_cast<std::uint32_t>(kRingBytesMax / block_bytes);
    shape.ring_blocks = std::max(ring_least, std::min(blocks / 3, ring_most));
    shape.held_blocks = blocks - shape.ring_blocks;
    if (chunk > 1 && 2 * chunk + 1 > shape.held_blocks) continue;  // one chunk, and the next
    shape.chunk_blocks = chunk;
    const std::uint32_t windows = shape.ring_blocks * slots.per_block / split;
    shape.window_blocks = std::clamp(windows / 4, 1u, kWindowSplitsMax) * split;
    shape.bytes = bytes;
    return shape;
  }
  const std::uint64_t least = slabs(block_bytes, ring_least + kHeldLeast, memory) +
                              beside(geometry, shape.group, 1, memory);
  return Error{Code::exhausted,
               fmt::format("kv.resident: {} bytes are too few, {} would do; the cache has {} bytes",
                           memory.resident_bytes, least, memory.cache_bytes)};
}

}  // namespace quire
