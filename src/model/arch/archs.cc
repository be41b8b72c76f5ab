#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/json.h"
#include "model/arch/arch.h"

namespace quire {
namespace {

constexpr const Architecture* kArchitectures[] = {&kLlama, &kGemma3, &kQwen2, &kQwen3};

constexpr TensorRow kCommonTensors[] = {
    {"token_embd.weight", "embed_tokens.weight", Extent::vocabulary, Extent::hidden},
    {"output_norm.weight", "norm.weight", Extent::none, Extent::hidden},
    {"output.weight", "lm_head.weight", Extent::vocabulary, Extent::hidden},
    {"blk.N.attn_norm.weight", "layers.N.input_layernorm.weight", Extent::none, Extent::hidden},
    {"blk.N.attn_q.weight", "layers.N.self_attn.q_proj.weight", Extent::queries, Extent::hidden},
    {"blk.N.attn_k.weight", "layers.N.self_attn.k_proj.weight", Extent::keys, Extent::hidden},
    {"blk.N.attn_v.weight", "layers.N.self_attn.v_proj.weight", Extent::keys, Extent::hidden},
    {"blk.N.attn_output.weight", "layers.N.self_attn.o_proj.weight", Extent::hidden,
     Extent::queries},
    {"blk.N.ffn_gate.weight", "layers.N.mlp.gate_proj.weight", Extent::feed_forward,
     Extent::hidden},
    {"blk.N.ffn_up.weight", "layers.N.mlp.up_proj.weight", Extent::feed_forward, Extent::hidden},
    {"blk.N.ffn_down.weight", "layers.N.mlp.down_proj.weight", Extent::hidden,
     Extent::feed_forward},
};

// Llama 3: slow frequencies are divided by `factor`, fast ones kept, those between blended.
// Frequencies are judged by how many turns they make in the context of the original training.
Result<std::vector<float>> llama3_factors(const Hyperparameters& from, const RopeConfig& rope,
                                          const std::string& at) {
  const auto positive = [&](std::string_view field) -> Result<double> {
    const std::string path = at + "." + std::string(field);
    const Key key{"", path};
    TRY(const float value, from.f32_of(key));
    if (!(value > 0))
      return from.bad(key, Code::corrupt, fmt::format("is {}, a positive number is needed", value));
    return static_cast<double>(value);
  };
  TRY(const double factor, positive("factor"));
  TRY(const double low, positive("low_freq_factor"));
  TRY(const double high, positive("high_freq_factor"));
  TRY(const double trained, positive("original_max_position_embeddings"));
  if (!(low < high)) {
    const std::string path = at + ".low_freq_factor";
    return from.bad({"", path}, Code::corrupt, "is not below high_freq_factor");
  }
  std::vector<float> factors;
  for (std::uint32_t i = 0; i < rope.dimensions / 2; ++i) {
    const double frequency = std::pow(static_cast<double>(rope.base), -2.0 * i / rope.dimensions);
    const double turns = trained * frequency / (2 * std::numbers::pi);
    const double keep = std::min(1.0, std::max(0.0, (turns - low) / (high - low)));
    factors.push_back(static_cast<float>(1 / ((1 - keep) / factor + keep)));
  }
  return factors;
}

Result<float> positive_factor(const Hyperparameters& from, Key key) {
  TRY(const float factor, from.f32_of(key));
  if (!(factor > 0))
    return from.bad(key, Code::corrupt, fmt::format("is {}, a positive number is needed", factor));
  return factor;
}

Status fill_scaling_gguf(const Hyperparameters& from, RopeConfig& rope) {
  constexpr Key kType{"rope.scaling.type", ""}, kFactor{"rope.scaling.factor", ""},
      kOld{"rope.scale_linear", ""};
  TRY(const std::string type, from.string_or(kType, from.has(kOld) ? "linear" : "none"));
  if (type == "none") return {};
  if (type != "linear")
    return from.bad(kType, Code::unsupported,
                    fmt::format("is '{}'; none and linear are supported", type));
  TRY(rope.linear_factor, positive_factor(from, from.has(kOld) ? kOld : kFactor));
  return {};
}

// Every head dimension is rotated, or it is another model.
Status refuse_partial_rotation(const Hyperparameters& from, const std::string& at) {
  const std::string nested = at + ".partial_rotary_factor";
  for (const Key key : {Key{"", "partial_rotary_factor"}, Key{"", nested}}) {
    TRY(const float part, from.f32_or(key, 1));
    if (part != 1)
      return from.bad(key, Code::unsupported, fmt::format("is {}; 1 is supported", part));
  }
  return {};
}

Status fill_scaling_hf(const Hyperparameters& from, const std::string& at, RopeConfig& rope) {
  TRY_STATUS(refuse_partial_rotation(from, at));
  const std::string new_path = at + ".rope_type", old_path = at + ".type",
                    factor_path = at + ".factor";
  const Key key{"",
                from.has({"", new_path}) ? std::string_view(new_path) : std::string_view(old_path)};
  TRY(const std::string type, from.string_or(key, "default"));
  if (type == "default") return {};
  if (type == "linear") {
    TRY(rope.linear_factor, positive_factor(from, {"", factor_path}));
    return {};
  }
  if (type == "llama3") {
    TRY(rope.factors, llama3_factors(from, rope, at));
    return {};
  }
  return from.bad(key, Code::unsupported,
                  fmt::format("is '{}'; default, linear and llama3 are supported", type));
}

}  // namespace

std::span<const Architecture* const> architectures() { return kArchitectures; }
std::span<const TensorRow> common_tensors() { return kCommonTensors; }

std::vector<std::string> tensor_names(const ModelConfig& c) {
  std::vector<std::string> names;
  const auto add = [&](std::span<const TensorRow> rows) {
    for (const TensorRow& row : rows) {
      const std::size_t n = row.name.find(".N.");
      if (n == row.name.npos) {
        if (row.name != "output.weight" || !c.tied_head) names.emplace_back(row.name);
        continue;
      }
      for (std::uint32_t l = 0; l < c.layers; ++l)
        names.push_back(fmt::format("{}.{}.{}", row.name.substr(0, n), l, row.name.substr(n + 3)));
    }
  };
  add(kCommonTensors);
  for (const Architecture* a : kArchitectures)
    if (a->name == c.architecture) add(a->tensors);
  return names;
}

std::uint64_t extent_of(Extent extent, const ModelConfig& c) {
  switch (extent) {
    case Extent::none:
      return 1;
    case Extent::hidden:
      return c.hidden;
    case Extent::feed_forward:
      return c.feed_forward;
    case Extent::queries:
      return std::uint64_t{c.query_heads} * c.head_dim;
    case Extent::keys:
      return std::uint64_t{c.kv_heads} * c.head_dim;
    case Extent::head:
      return c.head_dim;
    case Extent::vocabulary:
      return c.vocabulary;
  }
  return 0;
}

Result<RopeConfig> rope_of(const Hyperparameters& from, const ModelConfig& config,
                           std::string_view parameters) {
  RopeConfig rope;
  const bool newer = !from.is_gguf() && from.json_at(parameters) != nullptr;
  const std::string base_path = newer ? std::string(parameters) + ".rope_theta" : "rope_theta";
  const Key base{"rope.freq_base", base_path};
  TRY(rope.base, from.f32_or(base, rope.base));
  if (!(rope.base > 1))
    return from.bad(base, Code::corrupt, fmt::format("is {}, more than 1 is needed", rope.base));

  constexpr Key kDimensions{"rope.dimension_count", ""};
  TRY(const std::uint64_t dimensions, from.unsigned_or(kDimensions, config.head_dim));
  if (dimensions == 0 || dimensions % 2 != 0 || dimensions > config.head_dim)
    return from.bad(kDimensions, Code::corrupt,
                    fmt::format("is {}; an even number up to the head's {} is needed", dimensions,
                                config.head_dim));
  rope.dimensions = static_cast<std::uint32_t>(dimensions);
  if (from.is_gguf()) {
    TRY_STATUS(fill_scaling_gguf(from, rope));
  } else {
    TRY_STATUS(fill_scaling_hf(from, newer ? std::string(parameters) : "rope_scaling", rope));
  }
  return rope;
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
    config.per_layer[i].window = type == "sliding_attention" ? window : 0;
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
