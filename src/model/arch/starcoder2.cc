// StarCoder 2: layer norms, biases everywhere, no gate; otherwise Llama with a window.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"starcoder2"};
constexpr std::string_view kHfDefaults =
    R"({"norm_epsilon": 1e-5, "use_bias": true, "tie_word_embeddings": true})";

constexpr auto kOwnTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_norm.bias", "layers.N.input_layernorm.bias", extent::attention_norm_bias},
    {"blk.N.attn_output.bias", "layers.N.self_attn.o_proj.bias", extent::out_bias},
    {"blk.N.ffn_norm.bias", "layers.N.post_attention_layernorm.bias", extent::inner_norm_bias},
    {"blk.N.ffn_up.weight", "layers.N.mlp.c_fc.weight", extent::hidden, extent::inner},
    {"blk.N.ffn_up.bias", "layers.N.mlp.c_fc.bias", extent::up_bias},
    {"blk.N.ffn_down.weight", "layers.N.mlp.c_proj.weight", extent::inner, extent::hidden},
    {"blk.N.ffn_down.bias", "layers.N.mlp.c_proj.bias", extent::down_bias},
});
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kQkvBiasTensors, kOwnTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, plain_layer(from, "norm_epsilon", c));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "gelu_pytorch_tanh"));
  TRY(const bool biases, has_bias(from, "blk.0.attn_output.bias", "use_bias"));
  layer.attn.qkv_bias = layer.attn.out_bias = layer.ffn.bias = biases;
  TRY(layer.attn.window, window_of(from));
  return fill_alike(from, layer, c);
}

}  // namespace

const Architecture kStarCoder2{"starcoder2", kModelTypes, kHfDefaults, fill, kTensors};

}  // namespace quire
