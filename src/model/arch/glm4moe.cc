// GLM 4.5: experts chosen by sigmoids and a bias that counts only in the choice, and one that all rows
// have; half of a head is rotated. The last blocks of a GGUF file guess further tokens and are left out.
#include <fmt/format.h>

#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"glm4_moe"};
constexpr std::string_view kHfDefaults = R"({
  "partial_rotary_factor": 0.5, "norm_topk_prob": true, "routed_scaling_factor": 1.0,
  "first_k_dense_replace": 1, "n_shared_experts": 1, "n_group": 1, "topk_group": 1})";

constexpr auto kOwnTensors = std::to_array<TensorEntry>({
    {"blk.N.ffn_norm.weight", "layers.N.post_attention_layernorm.weight", extent::hidden, nullptr,
     "blk.N.post_attention_norm.weight"},
    {"blk.N.exp_probs_b.bias", "layers.N.mlp.gate.e_score_correction_bias", extent::choice_bias},
    {"blk.N.ffn_gate_shexp.weight", "layers.N.mlp.shared_experts.gate_proj.weight", extent::hidden,
     extent::shared_inner},
    {"blk.N.ffn_up_shexp.weight", "layers.N.mlp.shared_experts.up_proj.weight", extent::hidden,
     extent::shared_inner},
    {"blk.N.ffn_down_shexp.weight", "layers.N.mlp.shared_experts.down_proj.weight",
     extent::shared_inner, extent::expert_hidden},
    {"blk.N.attn_q_norm.weight", "layers.N.self_attn.q_norm.weight", extent::head_norm},
    {"blk.N.attn_k_norm.weight", "layers.N.self_attn.k_norm.weight", extent::head_norm},
});
constexpr auto kTensors =
    join(kAttentionTensors, kGatedTensors, kQkvBiasTensors, kExpertTensors, kOwnTensors);

Result<Experts> experts(const Hyperparameters& from, Experts e) {
  e.scores = Experts::Scores::sigmoid;
  e.choice_bias = true;
  TRY(e.renormalize, from.bool_or({"expert_weights_norm", "norm_topk_prob"}, true));
  TRY(e.scale, from.f32_above_or({"expert_weights_scale", "routed_scaling_factor"}, 0, 1));
  constexpr Key kGroups{"expert_group_count", "n_group"};
  TRY(e.groups, from.size_or(kGroups, e.count, 1));
  TRY(e.groups_used, from.size_or({"expert_group_used_count", "topk_group"}, e.groups, 1));
  if (e.count % e.groups != 0 || e.groups_used * (e.count / e.groups) < e.used)
    return from.bad(
        kGroups, Code::corrupt,
        fmt::format("is {}: {} experts of {} cannot be chosen so", e.groups, e.used, e.count));
  TRY(const std::uint32_t shared, from.size_or({"expert_shared_count", "n_shared_experts"}, 64, 1));
  e.shared_width = shared * e.width;
  return e;
}

Status fill(const Hyperparameters& from, ModelConfig& c) {
  constexpr Key kGuessing{"nextn_predict_layers", ""};
  TRY(const std::uint64_t guessing, from.unsigned_or(kGuessing, 0));
  if (guessing >= c.layers) return from.bad(kGuessing, Code::corrupt, "leaves no layer");
  c.layers -= static_cast<std::uint32_t>(guessing);
  TRY(LayerSpec layer, dense_layer(from, c, true));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  TRY(layer.attn.qkv_bias, has_bias(from, "blk.0.attn_q.bias", "attention_bias"));
  TRY(const bool norms, has_bias(from, "blk.0.attn_q_norm.weight", "use_qk_norm"));
  if (norms) layer.attn.head_norm = layer.pre_a;
  const FeedForward dense = layer.ffn;
  TRY(layer.ffn, experts_of(from, {"n_routed_experts", "moe_intermediate_size"}));
  TRY(layer.ffn.experts, experts(from, layer.ffn.experts));
  TRY_STATUS(fill_alike(from, layer, c));
  return fill_dense(from, dense, c);
}

}  // namespace

const Architecture kGlm4Moe{"glm4moe", kModelTypes, kHfDefaults, fill, kTensors};

}  // namespace quire
