// GLM 4.5: experts chosen by sigmoids and a bias that counts only in the choice, and one that all rows
// have; half of a head is rotated. The last blocks of a GGUF file guess further tokens and are left out.
#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"glm4_moe"};
constexpr std::string_view kHfDefaults = R"({
  "partial_rotary_factor": 0.5, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
  "first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1})";

constexpr auto kNormTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_norm.weight", "layers.N.post_attention_layernorm.weight", extent::hidden, nullptr,
     "blk.N.post_attention_norm.weight"},
});
constexpr auto kHeadTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_q_norm.weight", "layers.N.self_attn.q_norm.weight", extent::head_norm},
    {"blk.N.attn_k_norm.weight", "layers.N.self_attn.k_norm.weight", extent::head_norm},
});
constexpr auto kTensors = join(kAttentionTensors, kGatedTensors, kQkvBiasTensors, kExpertTensors,
                               kNormTensors, kSharedExpertTensors, kHeadTensors);

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY_STATUS(leave_out_guessing(from, c));
  TRY(LayerSpec layer, dense_layer(from, c, true));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY(layer.attn.qkv_bias, has_bias(from, "blk.0.attn_q.bias", "attention_bias"));
  TRY(const bool norms, has_bias(from, "blk.0.attn_q_norm.weight", "use_qk_norm"));
  if (norms) layer.attn.head_norm = layer.pre_a;
  const FeedForward dense = layer.ffn;
  TRY(layer.ffn, experts_of(from, {"n_routed_experts", "moe_intermediate_size"}));
  Experts& e = layer.ffn.experts;
  e.scores = Experts::Scores::sigmoid;
  e.choice_bias = true;
  TRY(e.renormalize, from.bool_or(kRenormalize, true));
  TRY_STATUS(fill_groups(from, e));
  TRY_STATUS(fill_alike(from, layer, c));
  return fill_dense(from, dense, c);
}

}  // namespace

const Architecture kGlm4Moe{"glm4moe", kModelTypes, kHfDefaults, fill, kTensors};

}  // namespace quire
