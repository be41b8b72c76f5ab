// SmolLM 3: Llama, but every fourth layer does not rotate.
#include <fmt/format.h>

#include "base/json.h"
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"smollm3"};
constexpr std::string_view kHfDefaults =
    R"({"rms_norm_eps": 1e-6, "rope_theta": 2000000.0, "tie_word_embeddings": true})";
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors);
constexpr std::uint32_t kEvery = 4;

Result<bool> rotates(const Hyperparameters& from, std::uint32_t layers, std::uint32_t layer) {
  constexpr Key kListed{"", "no_rope_layers"}, kInterval{"", "no_rope_layer_interval"};
  if (from.has(kListed)) {
    const Json& listed = *from.json_at(kListed.hf);
    if (!listed.is_array() || listed.size() < layers || !listed[layer].is_number_unsigned())
      return from.bad(kListed, Code::corrupt, fmt::format("is not a list of {} numbers", layers));
    return listed[layer].get<std::uint64_t>() != 0;
  }
  TRY(const std::uint32_t every, from.size_or(kInterval, UINT32_MAX, kEvery));
  return (layer + 1) % every != 0;
}

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  TRY_STATUS(refuse_if_true(from, {"", "mlp_bias"}));
  layer.attn.interleaved = from.is_gguf() ? layer.attn.key_dim : 0;
  c.paired_in_gguf = true;
  const Attention still = layer.attn;
  TRY_STATUS(fill_alike(from, layer, c));
  for (std::uint32_t i = 0; i < c.layers; ++i) {
    TRY(const bool turns, rotates(from, c.layers, i));
    if (turns) continue;
    c.per_layer[i].attn = still;
    c.per_layer[i].attn.rope = 1;
  }
  c.ropes.push_back({});
  TRY(const bool windows, from.bool_or({"", "use_sliding_window"}, false));
  if (!windows) return {};
  TRY(const std::uint32_t window, window_of(from));
  TRY_STATUS(fill_layer_types(from, window, c));
  return {};
}

}  // namespace

const Architecture kSmolLm3{"smollm3", kModelTypes, kHfDefaults, fill, kTensors};

}  // namespace quire
