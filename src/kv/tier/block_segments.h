// kv/tier/block_segments.h - how the extent of a block is cut into the segments of its record.
//
// A block is layer-major (kernels/geometry.h), so a segment is one run of bytes: the pages of one
// layer, or of the layers that share pages. Bytes that only round the extent up are in no segment.
//
//   const std::vector<RecordSegment> segments = block_segments(geometry, group);
//   RecordWrite write{.of = identity, .segments = segments, .bytes = cut_block(segments, extent)};
//   for (auto part : cut_block(segments, reserved)) reads.push_back({identity, i++, part});
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/geometry.h"
#include "kv/tier/record.h"

namespace quire {

// `layers_at_once`: fewer, larger segments; the last one may have fewer layers.
std::vector<RecordSegment> block_segments(const Geometry& geometry, std::uint32_t group,
                                          std::uint32_t layers_at_once = 1);

// The bytes of each segment. `Byte` is std::byte or const std::byte.
template <class Byte>
std::vector<std::span<Byte>> cut_block(std::span<const RecordSegment> segments,
                                       std::span<Byte> block) {
  std::vector<std::span<Byte>> parts;
  for (const RecordSegment& s : segments) {
    CHECK(s.bytes <= block.size());
    parts.push_back(block.first(s.bytes));
    block = block.subspan(s.bytes);
  }
  return parts;
}

}  // namespace quire
