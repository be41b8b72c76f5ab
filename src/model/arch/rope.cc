#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <numbers>

#include "base/json.h"
#include "model/arch/parts.h"

namespace quire {
namespace {

// A scaling's numbers, whichever form the file has.
struct Scaling {
  const Hyperparameters& from;
  std::string at;  // the object's path in config.json

  Key key(std::string_view gguf, const std::string& hf) {
    names.push_back(hf.empty() ? "" : at + "." + hf);
    return {gguf, names.back()};
  }
  Result<float> positive(std::string_view gguf, const std::string& hf) {
    return from.f32_above(key(gguf, hf), 0);
  }
  Result<float> positive_or(std::string_view gguf, const std::string& hf, float otherwise) {
    return from.f32_above_or(key(gguf, hf), 0, otherwise);
  }
  // The context it was trained for, which config.json may have outside of the object.
  Result<float> trained() {
    constexpr Key kOutside{"", "original_max_position_embeddings"};
    const Key inside = key("rope.scaling.original_context_length", std::string(kOutside.hf));
    if (!from.is_gguf())
      return from.f32_above(!from.has(inside) && from.has(kOutside) ? kOutside : inside, 0);
    TRY(const std::uint32_t tokens, from.size_of(inside, UINT32_MAX));
    return static_cast<float>(tokens);
  }

  std::deque<std::string> names = {};  // that keys are views of
};

constexpr const char* kFactorGguf = "rope.scaling.factor";

double frequency_of(const RopeConfig& rope, std::uint32_t i) {
  return std::pow(static_cast<double>(rope.base), -2.0 * i / rope.dimensions);
}

// Llama 3: slow frequencies are divided by `factor`, fast ones kept, those between blended.
// Frequencies are judged by how many turns they make in the context of the original training.
Status fill_llama3(Scaling s, RopeConfig& rope) {
  TRY(const double factor, s.positive("", "factor"));
  TRY(const double low, s.positive("", "low_freq_factor"));
  TRY(const double high, s.positive("", "high_freq_factor"));
  TRY(const double trained, s.trained());
  if (!(low < high))
    return s.from.bad(s.key("", "low_freq_factor"), Code::corrupt, "is not below high_freq_factor");
  for (std::uint32_t i = 0; i < rope.dimensions / 2; ++i) {
    const double turns = trained * frequency_of(rope, i) / (2 * std::numbers::pi);
    const double keep = std::min(1.0, std::max(0.0, (turns - low) / (high - low)));
    rope.factors.push_back(static_cast<float>(1 / ((1 - keep) / factor + keep)));
  }
  return {};
}

// YaRN: the same by the number of a dimension; and queries and keys grow a little.
Status fill_yarn(Scaling s, RopeConfig& rope, bool truncate) {
  TRY(const double factor, s.positive(kFactorGguf, "factor"));
  TRY(const double fast, s.positive_or("rope.scaling.yarn_beta_fast", "beta_fast", 32));
  TRY(const double slow, s.positive_or("rope.scaling.yarn_beta_slow", "beta_slow", 1));
  TRY(const double trained, s.trained());
  TRY(truncate, s.from.bool_or(s.key("", "truncate"), truncate));
  const auto dimension_of = [&](double turns) {
    return rope.dimensions * std::log(trained / (2 * std::numbers::pi * turns)) /
           (2 * std::log(static_cast<double>(rope.base)));
  };
  double low = dimension_of(fast), high = dimension_of(slow);
  if (truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, rope.dimensions - 1.0);
  if (low == high) high += 0.001;
  for (std::uint32_t i = 0; i < rope.dimensions / 2; ++i) {
    const double slowed = std::clamp((i - low) / (high - low), 0.0, 1.0);
    rope.factors.push_back(static_cast<float>(1 / ((1 - slowed) + slowed / factor)));
  }
  const auto growth = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
  TRY(const double scale, s.from.f32_or(s.key("", "mscale"), 0));
  TRY(const double all_scale, s.from.f32_or(s.key("", "mscale_all_dim"), 0));
  const double usual = scale != 0 && all_scale != 0 ? growth(scale) / growth(all_scale) : growth(1);
  // GGUF has a tenth of it, and means that both are alike.
  constexpr Key kLogarithm{"rope.scaling.yarn_log_multiplier", ""};
  TRY(const double logarithm, s.from.f32_or(kLogarithm, 0));
  const double of_scores = growth(s.from.is_gguf() ? 10 * logarithm : all_scale);
  if (logarithm != 0 || all_scale != 0)
    rope.score_factor = static_cast<float>(of_scores * of_scores);
  if (logarithm != 0) return {};
  TRY(const float more, s.positive_or("rope.scaling.attn_factor", "", 1));
  TRY(rope.attention_factor,
      s.positive_or("", "attention_factor", static_cast<float>(usual * more)));
  return {};
}

Status check_factors(const std::string& file, std::string_view what, const RopeConfig& rope,
                     std::span<const float> factors) {
  if (factors.size() != rope.dimensions / 2)
    return Error{Code::corrupt, fmt::format("{}: {} has {} factors, {} are needed", file, what,
                                            factors.size(), rope.dimensions / 2)};
  for (const float factor : factors)
    if (!(factor > 0) || !std::isfinite(factor))
      return Error{Code::corrupt, fmt::format("{}: {} has the factor {}", file, what, factor)};
  return {};
}

// Factors that come as a tensor: Llama 3's, and the two lists of LongRoPE. None: empty.
Result<std::vector<float>> tensor_factors(const GgufFile& file, const std::string& name,
                                          const RopeConfig& rope) {
  const TensorView* tensor = file.find(name);
  if (!tensor) return std::vector<float>();
  if (tensor->rows() != 1 || tensor->columns() != rope.dimensions / 2)
    return Error{Code::corrupt,
                 fmt::format("{}: tensor '{}' has shape [{}], [{}] is needed", file.name(), name,
                             fmt::join(tensor->shape, ", "), rope.dimensions / 2)};
  std::vector<float> factors(rope.dimensions / 2);
  dequantize_row(tensor->type, tensor->data.data(), factors.size(), factors.data());
  TRY_STATUS(check_factors(file.name(), "tensor '" + name + "'", rope, factors));
  return factors;
}

Result<std::vector<float>> listed_factors(Scaling& s, const std::string& name,
                                          const RopeConfig& rope) {
  const Key key = s.key("", name);
  const Json* list = s.from.json_at(key.hf);
  std::vector<float> factors;
  if (!list || !list->is_array()) return s.from.bad(key, Code::corrupt, "is not a list");
  for (const Json& x : *list) factors.push_back(x.is_number() ? x.get<float>() : 0);
  TRY_STATUS(check_factors("config.json", "key '" + std::string(key.hf) + "'", rope, factors));
  return factors;
}

Status fill_longrope(Scaling s, const ModelConfig& c, RopeConfig& rope) {
  TRY(const double trained, s.trained());
  rope.trained = static_cast<std::uint32_t>(std::min(trained, 4e9));
  if (s.from.is_gguf()) {
    const GgufFile& file = s.from.gguf();
    TRY(rope.short_factors, tensor_factors(file, "rope_factors_short.weight", rope));
    TRY(rope.long_factors, tensor_factors(file, "rope_factors_long.weight", rope));
    if (rope.short_factors.empty() || rope.long_factors.empty())
      return Error{Code::not_found, file.name() +
                                        ": tensor 'rope_factors_short.weight' or "
                                        "'rope_factors_long.weight' is missing"};
  } else {
    TRY(rope.short_factors, listed_factors(s, "short_factor", rope));
    TRY(rope.long_factors, listed_factors(s, "long_factor", rope));
  }
  TRY(const double factor,
      s.positive_or(kFactorGguf, "factor", static_cast<float>(c.context / trained)));
  const double usual = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(trained));
  TRY(rope.attention_factor,
      s.positive_or("rope.scaling.attn_factor", "attention_factor", static_cast<float>(usual)));
  return {};
}

// The kind of scaling, as both forms call it.
Result<std::string> kind_of(Scaling& s) {
  if (s.from.is_gguf()) {
    constexpr Key kType{"rope.scaling.type", ""}, kOld{"rope.scale_linear", ""};
    if (s.from.gguf().find("rope_factors_long.weight")) return std::string("longrope");
    TRY(std::string type, s.from.string_or(kType, s.from.has(kOld) ? "linear" : "none"));
    return type;
  }
  const Key newer = s.key("", "rope_type"), older = s.key("", "type");
  TRY(std::string type, s.from.string_or(s.from.has(newer) ? newer : older, "default"));
  return type;
}

Status fill_scaling(Scaling s, const ModelConfig& c, RopeConfig& rope, bool truncate) {
  TRY(const std::string kind, kind_of(s));
  if (kind == "linear") {
    constexpr Key kOld{"rope.scale_linear", ""};
    const Key key = s.key(kFactorGguf, "factor");
    TRY(rope.linear_factor, s.from.f32_above(s.from.has(kOld) ? kOld : key, 0));
  } else if (kind == "llama3" && !s.from.is_gguf()) {
    TRY_STATUS(fill_llama3(s, rope));
  } else if (kind == "yarn" && !s.from.has(s.key("", "long_factor"))) {
    TRY_STATUS(fill_yarn(s, rope, truncate));
  } else if (kind == "longrope" || kind == "su" || kind == "yarn") {  // old files of Phi-3 say so
    TRY_STATUS(fill_longrope(s, c, rope));
  } else if (kind != "default" && kind != "none") {
    const Key newer = s.key("rope.scaling.type", "rope_type"), older = s.key("", "type");
    return s.from.bad(
        s.from.is_gguf() || s.from.has(newer) ? newer : older, Code::unsupported,
        fmt::format("is '{}'; none, default, linear, llama3, yarn and longrope are supported",
                    kind));
  }
  return {};
}

// How many dimensions of a head are rotated.
Result<std::uint32_t> dimensions_of(Scaling& s, const Attention& attn) {
  constexpr Key kDimensions{"rope.dimension_count", ""}, kOutside{"", "partial_rotary_factor"};
  const Key inside = s.key("", "partial_rotary_factor");
  const Key key = s.from.is_gguf() ? kDimensions : s.from.has(inside) ? inside : kOutside;
  TRY(const float part, s.from.f32_above_or(s.from.is_gguf() ? Key{} : key, 0, 1));
  TRY(const std::uint64_t dimensions,
      s.from.unsigned_or(
          kDimensions,
          static_cast<std::uint64_t>(std::min(part, 2.0f) * static_cast<float>(attn.key_dim))));
  if (dimensions == 0 || dimensions % 2 != 0 || dimensions > attn.key_dim)
    return s.from.bad(key, Code::corrupt,
                      fmt::format("makes {} rotated dimensions; an even number up to the head's {} "
                                  "is needed",
                                  dimensions, attn.key_dim));
  return static_cast<std::uint32_t>(dimensions);
}

}  // namespace

Result<RopeConfig> rope_of(const Hyperparameters& from, const ModelConfig& config,
                           const Attention& attn, RopeChoices choices) {
  RopeConfig rope;
  const bool newer = !from.is_gguf() && from.json_at(choices.parameters) != nullptr;
  Scaling s{from, newer ? std::string(choices.parameters) : "rope_scaling"};
  const Key inside = s.key("rope.freq_base", "rope_theta"), outside{"rope.freq_base", "rope_theta"};
  TRY(rope.base, from.f32_above_or(newer && from.has(inside) ? inside : outside, 1, rope.base));
  TRY(rope.dimensions, dimensions_of(s, attn));
  TRY_STATUS(fill_scaling(s, config, rope, choices.truncate));
  if (from.is_gguf() && rope.factors.empty()) {
    TRY(rope.factors, tensor_factors(from.gguf(), "rope_freqs.weight", rope));
  }
  return rope;
}

void use_rope(const RopeConfig& rope, std::uint32_t index, Attention& attn) {
  const float both = rope.attention_factor * rope.attention_factor;
  attn.rope = index;
  (rope.dimensions == attn.key_dim ? attn.scale : attn.rotated_scale) *= both;
}

}  // namespace quire
