// model/device_upload.h - where a step's numbers lie in the memory that is uploaded before it. Private
// to DeviceModel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/api.h"

namespace quire {

// Batch sizes that share a graph.
inline std::uint32_t row_class(std::uint32_t rows) {
  for (const std::uint32_t c : {1u, 2u, 4u, 8u, 12u, 16u, 24u, 32u, 48u, 64u, 96u, 128u})
    if (rows <= c) return c;
  return (rows + 63) / 64 * 64;
}

inline std::size_t align(std::size_t n) { return (n + 255) / 256 * 256; }

struct ItemCounts {
  std::uint32_t decoded, tiles, seals, none;
};

// Offsets of the arrays at the beginning of an upload. Items and block tables follow them.
struct UploadLayout {
  std::size_t tokens, positions, select, broken, counts, groups, group_bytes, end;
  UploadLayout(std::uint32_t rows, std::size_t group_count) {
    const std::size_t each = align(rows * sizeof(std::uint32_t));
    tokens = 0;
    positions = tokens + each;
    select = positions + each;
    broken = select + each;  // written by the device, in the host's copy
    counts = broken + each;  // [group][decode items, tile items, seals, 0]
    groups = counts + align(group_count * sizeof(ItemCounts));
    group_bytes = each + align(rows * sizeof(AttendMerge));  // places, merges
    end = groups + group_count * group_bytes;
  }
  std::size_t places(std::size_t g) const { return groups + g * group_bytes; }
  std::size_t merges(std::size_t g, std::uint32_t rows) const {
    return places(g) + align(rows * sizeof(std::uint32_t));
  }
};

}  // namespace quire
