#include "model/arch/parts.h"

#include <fmt/format.h>

#include <cmath>

#include "base/json.h"

namespace quire {
namespace {

constexpr Key kHidden{"embedding_length", "hidden_size"};
constexpr Key kQueryHeads{"attention.head_count", "num_attention_heads"};
constexpr Key kKvHeads{"attention.head_count_kv", "num_key_value_heads"};
constexpr Key kHeadDim{"attention.key_length", "head_dim"};
constexpr Key kValueDim{"attention.value_length", "v_head_dim"};
constexpr Key kEpsilon{"attention.layer_norm_rms_epsilon", "rms_norm_eps"};
constexpr Key kInner{"feed_forward_length", "intermediate_size"};
constexpr std::uint64_t kHeadsMax = 65'536, kHeadDimMax = 4096, kFeedForwardMax = 10'000'000,
                        kExpertsMax = 65'536;

Result<Attention> heads_of(const Hyperparameters& from, const ModelConfig& c) {
  Attention a;
  TRY(a.query_heads, from.size_of(kQueryHeads, kHeadsMax));
  TRY(a.kv_heads, from.size_or(kKvHeads, a.query_heads, a.query_heads));
  if (a.query_heads % a.kv_heads != 0)
    return from.bad(kQueryHeads, Code::corrupt,
                    fmt::format("is {}, no multiple of '{}', which is {}", a.query_heads,
                                from.spelled(kKvHeads), a.kv_heads));
  const bool said = from.has(kHeadDim);
  if (!said && c.hidden % a.query_heads != 0)
    return from.bad(kHidden, Code::corrupt,
                    fmt::format("is {}, no multiple of the {} heads, and '{}' is missing", c.hidden,
                                a.query_heads, from.spelled(kHeadDim)));
  TRY(a.key_dim, from.size_or(kHeadDim, kHeadDimMax, c.hidden / a.query_heads));
  if (a.key_dim % 2 != 0 || a.key_dim > kHeadDimMax)
    return from.bad(said ? kHeadDim : kHidden, Code::corrupt,
                    fmt::format("makes heads of {}; an even size up to {} makes sense", a.key_dim,
                                kHeadDimMax));
  TRY(a.value_dim, from.size_or(kValueDim, kHeadDimMax, a.key_dim));
  a.scale = 1 / std::sqrt(static_cast<float>(a.key_dim));
  return a;
}

Result<Norm> norm_of(const Hyperparameters& from, Norm::Kind kind, Key key) {
  Norm norm{.kind = kind};
  TRY(norm.epsilon, from.f32_of(key));
  if (!(norm.epsilon >= 0) || norm.epsilon > 1)
    return from.bad(key, Code::corrupt, fmt::format("is {}; 0 to 1 makes sense", norm.epsilon));
  return norm;
}

}  // namespace

Result<LayerSpec> dense_layer(const Hyperparameters& from, ModelConfig& config,
                              bool may_have_experts) {
  LayerSpec layer;
  TRY(layer.ffn.width, from.size_of(kInner, kFeedForwardMax));
  TRY(layer.attn, heads_of(from, config));
  TRY(const Norm norm, norm_of(from, Norm::Kind::rms, kEpsilon));
  layer.pre_a = layer.pre_f = config.output_norm = norm;
  constexpr Key kExperts{"expert_count", "num_local_experts"};
  TRY(const std::uint64_t experts, from.unsigned_or(kExperts, 0));
  if (experts != 0 && !may_have_experts)
    return from.bad(kExperts, Code::unsupported,
                    fmt::format("is {}; this architecture has no experts", experts));
  return layer;
}

Result<FeedForward> experts_of(const Hyperparameters& from, ExpertKeys keys) {
  FeedForward ffn;
  Experts& e = ffn.experts;
  TRY(e.count, from.size_of({"expert_count", keys.count}, kExpertsMax));
  TRY(e.used, from.size_of({"expert_used_count", "num_experts_per_tok"}, e.count));
  constexpr Key kWidth{"expert_feed_forward_length", ""};
  TRY(e.width,
      from.size_of(from.has(kWidth) ? kWidth : Key{kInner.gguf, keys.width}, kFeedForwardMax));
  return ffn;
}

Status fill_groups(const Hyperparameters& from, Experts& e) {
  TRY(e.scale, from.f32_above_or({"expert_weights_scale", "routed_scaling_factor"}, 0, 1));
  constexpr Key kGroups{"expert_group_count", "n_group"};
  TRY(e.groups, from.size_or(kGroups, e.count, 1));
  TRY(e.groups_used, from.size_or({"expert_group_used_count", "topk_group"}, e.groups, 1));
  if (e.count % e.groups != 0 || e.groups_used * (e.count / e.groups) < e.used)
    return from.bad(
        kGroups, Code::corrupt,
        fmt::format("is {}: {} experts of {} cannot be chosen so", e.groups, e.used, e.count));
  constexpr Key kShared{"expert_shared_count", "n_shared_experts"};
  TRY(const std::uint32_t shared, from.size_or(kShared, 64, 1));
  e.shared_width = shared * e.width;
  return {};
}

Status leave_out_guessing(const Hyperparameters& from, ModelConfig& config) {
  constexpr Key kGuessing{"nextn_predict_layers", ""};
  TRY(const std::uint64_t guessing, from.unsigned_or(kGuessing, 0));
  if (guessing >= config.layers) return from.bad(kGuessing, Code::corrupt, "leaves no layer");
  config.layers -= static_cast<std::uint32_t>(guessing);
  return {};
}

Status fill_dense(const Hyperparameters& from, const FeedForward& dense, ModelConfig& config) {
  constexpr Key kListed{"", "mlp_only_layers"}, kStep{"", "decoder_sparse_step"},
      kLeading{"leading_dense_block_count", "first_k_dense_replace"};
  TRY(const std::uint64_t leading, from.unsigned_or(kLeading, 0));
  TRY(const std::uint32_t step, from.size_or(kStep, UINT32_MAX, 1));
  for (std::uint32_t i = 0; i < config.layers; ++i)
    if (i < leading || (i + 1) % step != 0) config.per_layer[i].ffn = dense;
  if (!from.has(kListed)) return {};
  const Json& listed = *from.json_at(kListed.hf);
  if (!listed.is_array()) return from.bad(kListed, Code::corrupt, "is not a list");
  for (const Json& i : listed) {
    if (!i.is_number_unsigned() || i.get<std::uint64_t>() >= config.layers)
      return from.bad(kListed, Code::corrupt, fmt::format("has {}, which is no layer", i.dump()));
    config.per_layer[i.get<std::uint64_t>()].ffn = dense;
  }
  return {};
}

Result<LayerSpec> plain_layer(const Hyperparameters& from, std::string_view epsilon,
                              ModelConfig& config) {
  LayerSpec layer;
  TRY(layer.ffn.width, from.size_or(kInner, kFeedForwardMax, 4 * config.hidden));
  TRY(layer.attn, heads_of(from, config));
  TRY(const Norm norm, norm_of(from, Norm::Kind::layer, {"attention.layer_norm_epsilon", epsilon}));
  layer.pre_a = layer.pre_f = config.output_norm = norm;
  layer.ffn.gated = false;
  layer.ffn.activation = Activation::gelu;
  return layer;
}

Status fill_alike(const Hyperparameters& from, LayerSpec layer, ModelConfig& config) {
  TRY(RopeConfig rope, rope_of(from, config, layer.attn));
  use_rope(rope, 0, layer.attn);
  config.ropes.push_back(std::move(rope));
  config.per_layer.assign(config.layers, layer);
  return {};
}

Result<bool> has_bias(const Hyperparameters& from, std::string_view tensor, std::string_view key) {
  if (from.is_gguf()) return from.gguf().find(tensor) != nullptr;
  return from.bool_or({"", key}, false);
}

Result<std::uint32_t> window_of(const Hyperparameters& from) {
  TRY(const std::uint64_t window, from.unsigned_or(kSlidingWindow, 0));
  if (window > UINT32_MAX)
    return from.bad(kSlidingWindow, Code::corrupt, fmt::format("is {}, which is too much", window));
  return static_cast<std::uint32_t>(window);
}

Result<bool> fill_layer_types(const Hyperparameters& from, std::uint32_t window,
                              ModelConfig& config) {
  constexpr Key kTypes{"", "layer_types"};
  if (!from.has(kTypes)) return false;
  const Json& types = *from.json_at(kTypes.hf);
  if (!types.is_array() || types.size() != config.layers)
    return from.bad(kTypes, Code::corrupt,
                    fmt::format("is not a list of {} entries, one per layer", config.layers));
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::string type = types[i].is_string() ? types[i].get<std::string>() : types[i].dump();
    if (type != "full_attention" && type != "sliding_attention")
      return from.bad(
          kTypes, Code::unsupported,
          fmt::format("has '{}'; full_attention and sliding_attention are supported", type));
    config.per_layer[i].attn.window = type == "sliding_attention" ? window : 0;
  }
  return true;
}

Status need_activation(const Hyperparameters& from, Key key, std::string_view name) {
  TRY(const std::string is, from.string_or(key, std::string(name)));
  if (is != name)
    return from.bad(key, Code::unsupported, fmt::format("is '{}'; '{}' is supported", is, name));
  return {};
}

Status refuse_if_true(const Hyperparameters& from, Key key) {
  TRY(const bool on, from.bool_or(key, false));
  if (on) return from.bad(key, Code::unsupported, "is true, which is not supported");
  return {};
}

}  // namespace quire
