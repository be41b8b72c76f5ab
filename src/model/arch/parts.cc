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
constexpr std::uint64_t kHeadsMax = 65'536, kHeadDimMax = 4096, kFeedForwardMax = 10'000'000;

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

}  // namespace

Result<LayerSpec> dense_layer(const Hyperparameters& from, ModelConfig& config) {
  LayerSpec layer;
  TRY(layer.ffn.width, from.size_of({"feed_forward_length", "intermediate_size"}, kFeedForwardMax));
  TRY(layer.attn, heads_of(from, config));
  Norm norm{.kind = Norm::Kind::rms};
  TRY(norm.epsilon, from.f32_of(kEpsilon));
  if (!(norm.epsilon >= 0) || norm.epsilon > 1)
    return from.bad(kEpsilon, Code::corrupt,
                    fmt::format("is {}; 0 to 1 makes sense", norm.epsilon));
  layer.pre_a = layer.pre_f = config.output_norm = norm;
  constexpr Key kExperts{"expert_count", "num_local_experts"};
  TRY(const std::uint64_t experts, from.unsigned_or(kExperts, 0));
  if (experts != 0)
    return from.bad(kExperts, Code::unsupported,
                    fmt::format("is {}; mixtures of experts are not supported", experts));
  return layer;
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
