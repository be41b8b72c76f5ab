#include "kv/tier/block_segments.h"

#include <algorithm>

namespace quire {

std::vector<RecordSegment> block_segments(const Geometry& geometry, std::uint32_t group,
                                          std::uint32_t layers_at_once) {
  const LayerGroup& g = geometry.groups[group];
  const std::uint32_t together = g.kind == GroupKind::state ? 1 : g.layers_per_page();
  const std::uint64_t bytes =
      g.kind == GroupKind::state ? g.state_bytes : geometry.page_bytes(g) * g.kv_heads;
  const auto layers = static_cast<std::uint32_t>(g.layers.size());
  const std::uint32_t step = std::max(layers_at_once / together, 1u) * together;
  std::vector<RecordSegment> segments;
  for (std::uint32_t first = 0; first < layers; first += step) {
    const std::uint32_t count = std::min(step, layers - first);
    segments.push_back({static_cast<std::uint16_t>(group), static_cast<std::uint16_t>(first),
                        static_cast<std::uint16_t>(count), count / together * bytes});
  }
  return segments;
}

}  // namespace quire
