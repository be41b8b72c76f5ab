// Any text is a config.json that makes sense or an error; so is any GGUF file.
#include <cmath>
#include <cstdint>

#include "model/config.h"
#include "model/quantization.h"
#include "tensor/gguf.h"

namespace {

// What every later part of the program relies on.
void check(const quire::ModelConfig& c) {
  CHECK(c.layers > 0 && c.layers == c.per_layer.size());
  CHECK(c.hidden > 0 && c.vocabulary > 0 && c.context > 0 && !c.tensors.empty());
  CHECK(std::isfinite(c.embedding_scale) && std::isfinite(c.logit_softcap));
  CHECK(c.output_norm && c.output_norm.epsilon >= 0);
  CHECK(!c.ropes.empty());
  for (const quire::RopeConfig& rope : c.ropes) {
    CHECK(rope.dimensions > 0 && rope.dimensions % 2 == 0);
    CHECK(std::isfinite(rope.base) && rope.base > 1 && std::isfinite(rope.linear_factor) &&
          rope.linear_factor > 0);
    CHECK(rope.factors.empty() || rope.factors.size() == rope.dimensions / 2);
    for (const float factor : rope.factors) CHECK(std::isfinite(factor) && factor > 0);
  }
  for (const quire::LayerSpec& layer : c.per_layer) {
    const quire::Attention& a = layer.attn;
    CHECK(a.kv_heads > 0 && a.query_heads % a.kv_heads == 0 && layer.ffn.width > 0);
    CHECK(a.key_dim > 0 && a.key_dim % 2 == 0 && a.value_dim > 0);
    CHECK(std::isfinite(a.scale) && a.scale > 0 && layer.pre_a.epsilon >= 0);
    CHECK(a.rope < c.ropes.size() && c.ropes[a.rope].dimensions <= a.key_dim);
  }
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
  if (const auto how = quantization_from_hf({reinterpret_cast<const char*>(data), size}, "fuzz");
      !how.ok())
    CHECK(how.error().message.starts_with("fuzz: "));
  const auto config = config_from_hf({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (config.ok())
    check(config.value());
  else
    CHECK(config.error().message.starts_with("fuzz: "));
  return 0;
}
