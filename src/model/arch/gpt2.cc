// GPT-2: learned positions, layer norms, biases everywhere, no gate. Hugging Face stores its matrices
// as [inputs, outputs].
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"gpt2"};
constexpr std::string_view kHfDefaults =
    R"({"layer_norm_epsilon": 1e-5, "tie_word_embeddings": true})";

constexpr std::string_view kQkv = "h.N.attn.c_attn.weight", kQkvBias = "h.N.attn.c_attn.bias",
                           kOut = "h.N.attn.c_proj.weight", kUp = "h.N.mlp.c_fc.weight",
                           kDown = "h.N.mlp.c_proj.weight";

constexpr auto kTensors = std::to_array<TensorEntry>({
    {"token_embd.weight", "wte.weight", extent::hidden, extent::vocabulary},
    {"position_embd.weight", "wpe.weight", extent::hidden, extent::positions},
    {"output_norm.weight", "ln_f.weight", extent::hidden},
    {"output_norm.bias", "ln_f.bias", extent::output_bias},
    {"blk.N.attn_norm.weight", "h.N.ln_1.weight", extent::hidden},
    {"blk.N.attn_norm.bias", "h.N.ln_1.bias", extent::attention_norm_bias},
    {"blk.N.attn_q.weight", kQkv, extent::hidden, extent::queries},
    {"blk.N.attn_k.weight", kQkv, extent::hidden, extent::keys},
    {"blk.N.attn_v.weight", kQkv, extent::hidden, extent::values},
    {"blk.N.attn_q.bias", kQkvBias, extent::query_bias},
    {"blk.N.attn_k.bias", kQkvBias, extent::key_bias},
    {"blk.N.attn_v.bias", kQkvBias, extent::value_bias},
    {"blk.N.attn_output.weight", kOut, extent::attended, extent::hidden},
    {"blk.N.attn_output.bias", "h.N.attn.c_proj.bias", extent::out_bias},
    {"blk.N.ffn_norm.weight", "h.N.ln_2.weight", extent::hidden},
    {"blk.N.ffn_norm.bias", "h.N.ln_2.bias", extent::inner_norm_bias},
    {"blk.N.ffn_up.weight", kUp, extent::hidden, extent::inner},
    {"blk.N.ffn_up.bias", "h.N.mlp.c_fc.bias", extent::up_bias},
    {"blk.N.ffn_down.weight", kDown, extent::inner, extent::hidden},
    {"blk.N.ffn_down.bias", "h.N.mlp.c_proj.bias", extent::down_bias},
});
constexpr auto kPieces = std::to_array<TensorPiece>({
    {"blk.N.attn_q.weight", "", kQkv, extent::none, extent::qkv, true},
    {"blk.N.attn_k.weight", "", kQkv, extent::queries, extent::qkv, true},
    {"blk.N.attn_v.weight", "", kQkv, extent::before_values, extent::qkv, true},
    {"blk.N.attn_q.bias", "", kQkvBias, extent::none, extent::qkv},
    {"blk.N.attn_k.bias", "", kQkvBias, extent::queries, extent::qkv},
    {"blk.N.attn_v.bias", "", kQkvBias, extent::before_values, extent::qkv},
    {"blk.N.attn_output.weight", "", kOut, extent::none, extent::hidden, true},
    {"blk.N.ffn_up.weight", "", kUp, extent::none, extent::inner, true},
    {"blk.N.ffn_down.weight", "", kDown, extent::none, extent::hidden, true},
});

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, plain_layer(from, "layer_norm_epsilon", c));
  TRY_STATUS(need_activation(from, {"", "activation_function"}, "gelu_new"));
  layer.attn.kv_heads = layer.attn.query_heads;
  layer.attn.qkv_bias = layer.attn.out_bias = layer.ffn.bias = true;
  c.learned_positions = true;
  c.ropes.push_back({});
  c.per_layer.assign(c.layers, layer);
  TRY(const bool by_layer, from.bool_or({"", "scale_attn_by_inverse_layer_idx"}, false));
  for (std::uint32_t i = 0; by_layer && i < c.layers; ++i)
    c.per_layer[i].attn.scale /= static_cast<float>(i + 1);
  return {};
}

}  // namespace

const Architecture kGpt2{"gpt2", kModelTypes, kHfDefaults, fill, kTensors, kPieces};

}  // namespace quire
