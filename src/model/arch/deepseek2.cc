// DeepSeek V2, V2-Lite, V3 and R1, and Kimi K2: latent attention, experts of which some groups are
// chosen, and YaRN that also scales scores. V2 chooses by softmax, and a group by its best expert; V3 by
// sigmoids and a bias, and a group by its two best. Older GGUF files have k_b and v_b as one tensor.
#include <fmt/format.h>

#include <cmath>

#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr std::string_view kModelTypes[] = {"deepseek_v2", "deepseek_v3", "kimi_k2"};
constexpr std::string_view kHfDefaults = R"({"rms_norm_eps": 1e-6, "first_k_dense_replace": 0})";

using Config = ModelConfig;
using Layer = LayerSpec;
std::uint64_t rank(const Config&, const Layer& l) { return l.attn.latent.query_rank; }
std::uint64_t projected(const Config&, const Layer& l) {
  return l.attn.query_heads * l.attn.projected_dim();
}
std::uint64_t projected_at_once(const Config& c, const Layer& l) {
  return rank(c, l) == 0 ? projected(c, l) : 0;
}
std::uint64_t latent(const Config&, const Layer& l) { return l.attn.value_dim; }
std::uint64_t row(const Config&, const Layer& l) { return l.attn.value_dim + l.attn.key_dim; }
std::uint64_t plain(const Config&, const Layer& l) { return l.attn.latent.plain_dim; }
std::uint64_t absorbed(const Config&, const Layer& l) {
  return std::uint64_t{l.attn.query_heads} * l.attn.value_dim;
}
std::uint64_t expanded(const Config&, const Layer& l) {
  return l.attn.query_heads * (l.attn.latent.plain_dim + l.attn.latent.out_dim);
}
// A head of attn_kv_b has rows of keys, then rows of values.
std::uint64_t value_row(const Layer& l, std::uint64_t r) {
  const std::uint32_t out = l.attn.latent.out_dim, keys = l.attn.latent.plain_dim;
  return r / out * (keys + out) + keys + r % out;
}

constexpr auto kLatentTensors = std::to_array<TensorEntry>({
    {"blk.N.attn_norm.weight", "layers.N.input_layernorm.weight", extent::hidden},
    {"blk.N.attn_q.weight", "layers.N.self_attn.q_proj.weight", extent::hidden, projected_at_once},
    {"blk.N.attn_q_a.weight", "layers.N.self_attn.q_a_proj.weight", extent::hidden, rank},
    {"blk.N.attn_q_a_norm.weight", "layers.N.self_attn.q_a_layernorm.weight", rank},
    {"blk.N.attn_q_b.weight", "layers.N.self_attn.q_b_proj.weight", rank, projected},
    {"blk.N.attn_kv_a_mqa.weight", "layers.N.self_attn.kv_a_proj_with_mqa.weight", extent::hidden,
     row},
    {"blk.N.attn_kv_a_norm.weight", "layers.N.self_attn.kv_a_layernorm.weight", latent},
    {"blk.N.attn_k_b.weight", "layers.N.self_attn.kv_b_proj.weight", plain, absorbed},
    {"blk.N.attn_v_b.weight", "layers.N.self_attn.kv_b_proj.weight", latent, extent::attended},
    {"blk.N.attn_output.weight", "layers.N.self_attn.o_proj.weight", extent::attended,
     extent::hidden},
});
constexpr auto kTensors =
    join(kLatentTensors, kPreNormTensors, kGatedTensors, kExpertTensors, kSharedExpertTensors);

constexpr TensorPiece kPieces[] = {
    // Heads may be a dimension of their own.
    {"blk.N.attn_k_b.weight", "blk.N.attn_k_b.weight", "", extent::none, absorbed},
    {"blk.N.attn_v_b.weight", "blk.N.attn_v_b.weight", "", extent::none, extent::attended},
    {"blk.N.attn_k_b.weight", "blk.N.attn_kv_b.weight", "layers.N.self_attn.kv_b_proj.weight",
     extent::none, expanded, false, nullptr, nullptr, plain},
    {"blk.N.attn_v_b.weight", "blk.N.attn_kv_b.weight", "layers.N.self_attn.kv_b_proj.weight",
     extent::none, expanded, false, value_row},
};

constexpr Key kHeadDim{"attention.key_length_mla", ""}, kOldHeadDim{"attention.key_length", ""},
    kRotated{"rope.dimension_count", "qk_rope_head_dim"};
constexpr std::uint64_t kDimMax = 65'536;

// How wide the parts of queries, rows and results are. Older GGUF files have those of heads as if
// they were expanded.
Result<Attention> dims_of(const Hyperparameters& from, Attention a) {
  a.kv_heads = 1;
  TRY(a.key_dim, from.size_of(kRotated, kDimMax));
  TRY(a.value_dim, from.size_of({"attention.kv_lora_rank", "kv_lora_rank"}, kDimMax));
  TRY(a.latent.query_rank, from.size_or({"attention.q_lora_rank", "q_lora_rank"}, kDimMax, 0));
  const bool newer = from.has(kHeadDim);
  if (from.is_gguf()) {
    const Key key = newer ? kHeadDim : kOldHeadDim;
    TRY(const std::uint32_t head, from.size_of(key, kDimMax));
    if (head <= a.key_dim)
      return from.bad(key, Code::corrupt,
                      fmt::format("is {}, of which {} are rotated", head, a.key_dim));
    a.latent.plain_dim = head - a.key_dim;
  } else {
    TRY(a.latent.plain_dim, from.size_of({"", "qk_nope_head_dim"}, kDimMax));
  }
  TRY(a.latent.out_dim,
      from.size_of({newer ? "attention.value_length_mla" : "attention.value_length", "v_head_dim"},
                   kDimMax));
  if (a.key_dim % 2 != 0) return from.bad(kRotated, Code::corrupt, "is not even");
  TRY(const bool interleaved, from.bool_or({"", "rope_interleave"}, true));
  a.interleaved = interleaved ? a.key_dim : 0;
  // Whatever the file says of other norms.
  a.latent.norm = {.kind = Norm::Kind::rms, .epsilon = 1e-6f};
  return a;
}

// Whether experts are scored by sigmoids, as V3 does.
Result<bool> has_sigmoids(const Hyperparameters& from) {
  if (from.is_gguf()) {
    TRY(const std::uint64_t leading, from.unsigned_or({"leading_dense_block_count", ""}, 0));
    const bool biased =
        from.gguf().find(fmt::format("blk.{}.exp_probs_b.bias", leading)) != nullptr;
    constexpr Key kGating{"expert_gating_func", ""};
    TRY(const std::uint64_t gating, from.unsigned_or(kGating, 0));
    if (gating > 2)
      return from.bad(kGating, Code::unsupported,
                      fmt::format("is {}; 1 and 2 are supported", gating));
    return gating == 0 ? biased : gating == 2;
  }
  TRY(const std::string type, from.string_or({"", "model_type"}, ""));
  constexpr Key kScoring{"", "scoring_func"}, kMethod{"", "topk_method"};
  TRY(const std::string scoring,
      from.string_or(kScoring, type == "deepseek_v2" ? "softmax" : "sigmoid"));
  if (scoring != "softmax" && scoring != "sigmoid")
    return from.bad(kScoring, Code::unsupported,
                    fmt::format("is '{}'; softmax and sigmoid are supported", scoring));
  TRY(const std::string method, from.string_or(kMethod, "greedy"));
  if (method != "greedy" && method != "group_limited_greedy" && method != "noaux_tc")
    return from.bad(
        kMethod, Code::unsupported,
        fmt::format("is '{}'; greedy, group_limited_greedy and noaux_tc are supported", method));
  return scoring == "sigmoid";
}

Status fill_experts(const Hyperparameters& from, Experts& e) {
  TRY(const bool sigmoids, has_sigmoids(from));
  TRY_STATUS(fill_groups(from, e));
  TRY(const std::string method, from.string_or({"", "topk_method"}, ""));
  if (!sigmoids && method == "greedy") e.groups = e.groups_used = 1;
  e.scores = sigmoids ? Experts::Scores::sigmoid : Experts::Scores::softmax;
  e.choice_bias = sigmoids;
  if (!sigmoids) return {};  // V2 never divides by the sum, whatever its files say
  TRY(e.renormalize, from.bool_or(kRenormalize, true));
  return {};
}

Status fill(const Hyperparameters& from, ModelConfig& c) {
  TRY_STATUS(leave_out_guessing(from, c));
  TRY(LayerSpec layer, dense_layer(from, c, true));
  TRY_STATUS(need_activation(from, {"", "hidden_act"}, "silu"));
  for (const char* key : {"attention_bias", "mlp_bias"})
    TRY_STATUS(refuse_if_true(from, {"", key}));
  constexpr Key kEvery{"", "moe_layer_freq"};
  TRY(const std::uint64_t every, from.unsigned_or(kEvery, 1));
  if (every != 1)
    return from.bad(kEvery, Code::unsupported, fmt::format("is {}; 1 is supported", every));
  const FeedForward dense = layer.ffn;
  TRY(layer.ffn, experts_of(from, {"n_routed_experts", "moe_intermediate_size"}));
  TRY_STATUS(fill_experts(from, layer.ffn.experts));
  TRY(layer.attn, dims_of(from, layer.attn));
  Attention& a = layer.attn;
  TRY(RopeConfig rope, rope_of(from, c, a));
  a.scale = rope.score_factor / std::sqrt(static_cast<float>(a.projected_dim()));
  a.rotated_scale = rope.attention_factor * rope.attention_factor;
  c.ropes.push_back(std::move(rope));
  c.per_layer.assign(c.layers, layer);
  return fill_dense(from, dense, c);
}

}  // namespace

const Architecture kDeepSeek2{"deepseek2", kModelTypes, kHfDefaults, fill, kTensors, kPieces};

}  // namespace quire
