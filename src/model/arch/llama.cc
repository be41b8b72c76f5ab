// Llama 2 and 3, SmolLM2, TinyLlama, and Mistral with its sliding window.
#include "model/arch/arch.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"llama", "mistral"};

constexpr TensorRow kTensors[] = {
    {"blk.N.ffn_norm.weight", "layers.N.post_attention_layernorm.weight", Extent::none,
     Extent::hidden},
};

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY_STATUS(refuse_if_true(from, {"", "attention_bias"}));
  TRY_STATUS(refuse_if_true(from, {"", "mlp_bias"}));
  TRY(RopeConfig rope, rope_of(from, c));
  c.ropes.push_back(std::move(rope));
  c.interleaved_rope = from.is_gguf();
  TRY(const std::uint32_t window, window_of(from));
  for (LayerConfig& layer : c.per_layer) layer.window = window;
  TRY_STATUS(fill_layer_types(from, window, c));
  return {};
}

}  // namespace

const Architecture kLlama{"llama", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
