#include "kernels/geometry.h"

#include <algorithm>

namespace quire {
namespace {
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
}  // namespace

bool Geometry::exact() const {
  return std::ranges::none_of(groups, [](const LayerGroup& g) { return g.sealed(); });
}

bool Geometry::by_block() const {
  return std::ranges::any_of(groups, [](const LayerGroup& g) { return g.together > 1; });
}

// A query at position `tokens` sees the last window - 1 tokens before it.
std::uint64_t Geometry::first_block(const LayerGroup& g, std::uint64_t tokens) const {
  if (g.kind == GroupKind::recent)
    return tokens / tokens_per_block -
           std::min<std::uint64_t>(tokens / tokens_per_block, g.recent_blocks);
  if (g.window == 0 || tokens < g.window) return 0;
  return std::min((tokens + 1 - g.window) / tokens_per_block, block_end(g, tokens));
}

std::size_t Geometry::page_bytes(const LayerGroup& g) const {
  return round_up(key_bytes(g) + g.format->value_bytes(page_shape(g)), 64);
}

std::size_t Geometry::block_bytes(const LayerGroup& g) const {
  const std::size_t bytes =
      g.kind == GroupKind::state ? g.state_bytes * g.layers.size() : page_bytes(g) * g.lanes();
  return round_up(bytes, 256);
}

double Geometry::bytes_per_token(const LayerGroup& g) const {
  return static_cast<double>(block_bytes(g)) / tokens_per_block;
}

}  // namespace quire
