// GLM 4 (0414): norms before and after both halves; half of a head is rotated, in pairs of neighbours;
// biases on q, k and v; gate and up in one tensor.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"glm4"};
constexpr std::string_view kHfDefaults =
    R"({"head_dim": 128, "attention_bias": true, "partial_rotary_factor": 0.5})";

constexpr auto kAfterTensors = std::to_array<TensorEntry>({
    {"blk.N.post_attention_norm.weight", "layers.N.post_self_attn_layernorm.weight",
     extent::hidden},
    {"blk.N.post_ffw_norm.weight", "layers.N.post_mlp_layernorm.weight", extent::hidden},
});
constexpr auto kTensors =
    join(kAttentionTensors, kPreNormTensors, kGatedTensors, kQkvBiasTensors, kAfterTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY(layer.attn.qkv_bias, has_bias(from, "blk.0.attn_q.bias", "attention_bias"));
  layer.post_a = layer.post_f = c.output_norm;
  TRY_STATUS(fill_alike(from, layer, c));
  for (LayerSpec& each : c.per_layer) each.attn.interleaved = c.ropes[0].dimensions;
  return {};
}

}  // namespace

const Architecture kGlm4{"glm4", kModelTypes, kHfDefaults, fill, kTensors};

}  // namespace quire
