// Any text is a config.json that makes sense or an error; so is any GGUF file.
#include <cmath>
#include <cstdint>

#include "model/config.h"
#include "tensor/gguf.h"

namespace {

// What every later part of the program relies on.
void check(const quire::ModelConfig& c) {
  CHECK(c.layers > 0 && c.layers == c.per_layer.size());
  CHECK(c.hidden > 0 && c.feed_forward > 0 && c.vocabulary > 0 && c.context > 0);
  CHECK(c.kv_heads > 0 && c.query_heads % c.kv_heads == 0);
  CHECK(c.head_dim > 0 && c.head_dim % 2 == 0);
  CHECK(std::isfinite(c.attention_scale) && c.attention_scale > 0);
  CHECK(std::isfinite(c.embedding_scale) && std::isfinite(c.logit_softcap) && c.norm_epsilon >= 0);
  CHECK(!c.ropes.empty());
  for (const quire::RopeConfig& rope : c.ropes) {
    CHECK(rope.dimensions > 0 && rope.dimensions % 2 == 0 && rope.dimensions <= c.head_dim);
    CHECK(std::isfinite(rope.base) && rope.base > 1 && std::isfinite(rope.linear_factor) &&
          rope.linear_factor > 0);
    CHECK(rope.factors.empty() || rope.factors.size() == rope.dimensions / 2);
    for (const float factor : rope.factors) CHECK(std::isfinite(factor) && factor > 0);
  }
  for (const quire::LayerConfig& layer : c.per_layer) CHECK(layer.rope < c.ropes.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace quire;
  if (size >= 4 && data[0] == 'G') {
    const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz");
    if (!file.ok()) return 0;
    const auto config = config_from_gguf(file.value());
    if (config.ok()) check(config.value());
    return 0;
  }
  if (size > 128 << 10) return 0;
  const auto config = config_from_hf({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (config.ok())
    check(config.value());
  else
    CHECK(config.error().message.starts_with("fuzz: "));
  return 0;
}
