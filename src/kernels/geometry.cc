#include "kernels/geometry.h"

namespace quire {
namespace {
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
}  // namespace

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
