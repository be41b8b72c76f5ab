#include "kv/layout.h"

#include <bit>

#include "format/calibration.h"

namespace quire {
namespace {
constexpr std::uint32_t kLayoutVersion = 2;

void put(std::string& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i));
}

void put(std::string& out, std::string_view bytes) {
  put(out, bytes.size());
  out.append(bytes);
}
}  // namespace

// Every number as u64, little-endian, every list and string after its length. Which layer reads
// which pages counts too: a layer that shares another's KV computes other numbers downstream.
std::string encode_layout(const Geometry& geometry) {
  std::string out = "quire-kv-layout";
  put(out, kLayoutVersion);
  put(out, geometry.tokens_per_block);
  put(out, geometry.groups.size());
  for (const LayerGroup& g : geometry.groups) {
    put(out, static_cast<std::uint64_t>(g.kind));
    put(out, g.layers.size());
    for (const std::uint32_t layer : g.layers) put(out, layer);
    put(out, g.kv_heads);
    put(out, g.key_dim);
    put(out, g.value_dim);
    put(out, g.window);
    put(out, g.state_bytes);
    put(out, g.format ? g.format->name : std::string_view());
    put(out, g.recent_blocks);
    put(out, g.sink_blocks);
    for (const Calibration* c : {g.key_calibration, g.value_calibration})
      if (c) put(out, c->digest);
  }
  for (const auto* places : {&geometry.places, &geometry.rows}) {
    put(out, places->size());
    for (const LayerPlace& p : *places) {
      put(out, p.group);
      put(out, p.index);
    }
  }
  if (geometry.sparse()) {
    put(out, static_cast<std::uint64_t>(geometry.prefill.way));
    put(out, std::bit_cast<std::uint32_t>(geometry.prefill.threshold));
    put(out, geometry.prefill.columns);
    put(out, geometry.prefill.diagonals);
  }
  return out;
}

Digest layout_digest(const Geometry& geometry) { return sha256(encode_layout(geometry)); }

}  // namespace quire
