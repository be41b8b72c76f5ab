// kv/slab_shape.h - how many pages a slab of a size class takes. The arena and memory plans use it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_view.h"
#include "kv/memory.h"

namespace quire {

struct SlabShape {
  std::uint64_t bytes;     // of one slab, whole pages
  std::uint64_t capacity;  // extents in it
};

// The fewest pages whose unused tail is under 2 %. A slab takes at most an eighth of the budget,
// unless one extent is larger: with a small budget, sharing between classes matters more than full
// slabs.
inline SlabShape slab_shape(std::size_t extent_bytes, std::uint64_t budget_bytes = UINT64_MAX,
                            std::size_t page_bytes = kMemoryPage) {
  const std::size_t extent = (extent_bytes + kArenaUnit - 1) / kArenaUnit * kArenaUnit;
  const std::uint64_t least = (extent + page_bytes - 1) / page_bytes;
  const std::uint64_t most = std::max<std::uint64_t>(least, budget_bytes / 8 / page_bytes);
  std::uint64_t best = least;
  double best_slack = 1;
  for (std::uint64_t pages = least; pages <= most; ++pages) {  // at most 50 + least rounds
    const double slack =
        static_cast<double>(pages * page_bytes % extent) / static_cast<double>(pages * page_bytes);
    if (slack < best_slack) {
      best = pages;
      best_slack = slack;
    }
    if (slack < 0.02) break;
  }
  return {best * page_bytes, best * page_bytes / extent};
}

}  // namespace quire
