// Llama 2 and 3, SmolLM2, TinyLlama, and Mistral with its sliding window.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"llama", "mistral"};
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  TRY_STATUS(refuse_if_true(from, {"", "mlp_bias"}));
  TRY(RopeConfig rope, rope_of(from, layer.attn));
  c.ropes.push_back(std::move(rope));
  layer.attn.interleaved = from.is_gguf();
  TRY(layer.attn.window, window_of(from));
  c.per_layer.assign(c.layers, layer);
  TRY_STATUS(fill_layer_types(from, layer.attn.window, c));
  return {};
}

}  // namespace

const Architecture kLlama{"llama", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
