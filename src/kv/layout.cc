#include "kv/layout.h"

#include <bit>

#include "format/calibration.h"

namespace quire {
namespace {
constexpr std::uint32_t kLayoutVersion = 2;

void put_part(std::string& out, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) out += static_cast<char>(value >> (8 * i));
}

void put_part(std::string& out, std::string_view bytes) {
  put_part(out, bytes.size());
  out.append(bytes);
}
}  // namespace

// Every number as u64, little-endian, every list and string after its length. Which layer reads
// which pages counts too: a layer that shares another's KV computes other numbers downstream.
std::string encode_layout(const Geometry& geometry) {
  std::string out = "quire-kv-layout";
  put_part(out, kLayoutVersion);
  put_part(out, geometry.tokens_per_block);
  put_part(out, geometry.groups.size());
  for (const LayerGroup& g : geometry.groups) {
    put_part(out, static_cast<std::uint64_t>(g.kind));
    put_part(out, g.layers.size());
    for (const std::uint32_t layer : g.layers) put_part(out, layer);
    put_part(out, g.kv_heads);
    put_part(out, g.key_dim);
    put_part(out, g.value_dim);
    put_part(out, g.window);
    put_part(out, g.state_bytes);
    put_part(out, g.format ? g.format->name : std::string_view());
    put_part(out, g.recent_blocks);
    put_part(out, g.sink_blocks);
    for (const Calibration* c : {g.key_calibration, g.value_calibration})
      if (c) put_part(out, c->digest);
  }
  for (const auto* places : {&geometry.places, &geometry.rows}) {
    put_part(out, places->size());
    for (const LayerPlace& p : *places) {
      put_part(out, p.group);
      put_part(out, p.index);
    }
  }
  if (geometry.sparse()) {
    put_part(out, static_cast<std::uint64_t>(geometry.prefill.way));
    put_part(out, std::bit_cast<std::uint32_t>(geometry.prefill.threshold));
    put_part(out, geometry.prefill.columns);
    put_part(out, geometry.prefill.diagonals);
  }
  if (geometry.order != PageOrder::codec) {
    put_part(out, std::string_view("order"));
    put_part(out, static_cast<std::uint64_t>(geometry.order));
  }
  return out;
}

Digest layout_digest(const Geometry& geometry) { return sha256(encode_layout(geometry)); }

}  // namespace quire
