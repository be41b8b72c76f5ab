// Qwen 2 with experts, and one that all rows have, through a gate of its own.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"qwen2_moe"};
constexpr auto kSharedTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_gate_shexp.weight", "layers.N.mlp.shared_expert.gate_proj.weight", extent::hidden,
     extent::shared_inner},
    {"blk.N.ffn_up_shexp.weight", "layers.N.mlp.shared_expert.up_proj.weight", extent::hidden,
     extent::shared_inner},
    {"blk.N.ffn_down_shexp.weight", "layers.N.mlp.shared_expert.down_proj.weight",
     extent::shared_inner, extent::expert_hidden},
    {"blk.N.ffn_gate_inp_shexp.weight", "layers.N.mlp.shared_expert_gate.weight", extent::hidden,
     extent::shared_gate},
});
constexpr auto kTensors = join(kAttentionTensors, kPreNormTensors, kGatedTensors, kQkvBiasTensors,
                               kExpertTensors, kSharedTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY(LayerSpec layer, dense_layer(from, c, true));
  const FeedForward dense = layer.ffn;
  TRY(layer.ffn, experts_of(from, {"num_experts", "moe_intermediate_size"}));
  Experts& e = layer.ffn.experts;
  TRY(e.renormalize, from.bool_or({"", "norm_topk_prob"}, false));
  TRY(e.shared_width,
      from.size_of({"expert_shared_feed_forward_length", "shared_expert_intermediate_size"},
                   10'000'000));
  e.shared_gate = true;
  layer.attn.qkv_bias = true;
  TRY_STATUS(fill_qwen(from, layer, c));
  return fill_dense(from, dense, c);
}

}  // namespace

const Architecture kQwen2Moe{"qwen2moe", kModelTypes, "{}", fill, kTensors};

}  // namespace quire
