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

// Of the groups whose blocks do not become cold, for a chunk.
struct Beside {
  std::uint64_t blocks = 0, slabs = 0;  // bytes
};
Beside beside(const Geometry& g, std::uint32_t group, std::uint32_t chunk, const SpillMemory& m) {
  Beside all;
  for (std::uint32_t i = 0; i < g.groups.size(); ++i) {
    const LayerGroup& other = g.groups[i];
    if (i == group) continue;
    const std::uint64_t blocks =
        other.open_only() ? 3
        : other.kind == GroupKind::recent
            ? other.recent_blocks + other.sink_blocks + chunk + 3
            : round_up(other.window, g.tokens_per_block) / g.tokens_per_block + chunk + 3;
    all.blocks += g.block_bytes(other) * blocks;
    all.slabs += slabs(g.block_bytes(other), blocks, m);
  }
  return all;
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
  const SlabShape slab = slab_shape(block_bytes, memory.cache_bytes, memory.memory_page);
  for (std::uint32_t chunk = chunk_most; chunk > 0; chunk /= 2) {
    // What the request may hold counts in blocks; the cache gives whole slabs.
    const Beside other = beside(geometry, shape.group, chunk, memory);
    const auto fit = [](std::uint64_t all, std::uint64_t used, std::uint64_t unit) {
      return all > used ? (all - used) / unit : 0;
    };
    const auto blocks = static_cast<std::uint32_t>(
        std::min({fit(memory.resident_bytes, other.blocks, block_bytes),
                  fit(memory.cache_bytes, other.slabs, slab.bytes) * slab.capacity,
                  std::uint64_t{1} << 30}));
    if (blocks < ring_least + kHeldLeast) continue;
    const auto ring_most = static_cast<std::uint32_t>(kRingBytesMax / block_bytes);
    shape.ring_blocks = std::max(ring_least, std::min(blocks / 3, ring_most));
    shape.held_blocks = blocks - shape.ring_blocks;
    if (chunk > 1 && 2 * chunk + 1 > shape.held_blocks) continue;  // one chunk, and the next
    shape.chunk_blocks = chunk;
    const std::uint32_t windows = shape.ring_blocks * slots.per_block / split;
    shape.window_blocks = std::clamp(windows / 4, 1u, kWindowSplitsMax) * split;
    shape.bytes = std::min(memory.resident_bytes, memory.cache_bytes);
    return shape;
  }
  const Beside other = beside(geometry, shape.group, 1, memory);
  const std::uint64_t blocks = ring_least + kHeldLeast;
  return Error{
      Code::exhausted,
      fmt::format("kv.resident: {} bytes of a cache of {} are too few; {} of {} would do",
                  memory.resident_bytes, memory.cache_bytes, blocks * block_bytes + other.blocks,
                  slabs(block_bytes, blocks, memory) + other.slabs)};
}

}  // namespace quire
