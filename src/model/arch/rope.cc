#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/arch/parts.h"

namespace quire {
namespace {

// Llama 3: slow frequencies are divided by `factor`, fast ones kept, those between blended.
// Frequencies are judged by how many turns they make in the context of the original training.
Result<std::vector<float>> llama3_factors(const Hyperparameters& from, const RopeConfig& rope,
                                          const std::string& at) {
  const auto positive = [&](const char* field) { return from.f32_above({"", at + field}, 0); };
  TRY(const double factor, positive(".factor"));
  TRY(const double low, positive(".low_freq_factor"));
  TRY(const double high, positive(".high_freq_factor"));
  TRY(const double trained, positive(".original_max_position_embeddings"));
  if (!(low < high))
    return from.bad({"", at + ".low_freq_factor"}, Code::corrupt, "is not below high_freq_factor");
  std::vector<float> factors;
  for (std::uint32_t i = 0; i < rope.dimensions / 2; ++i) {
    const double frequency = std::pow(static_cast<double>(rope.base), -2.0 * i / rope.dimensions);
    const double turns = trained * frequency / (2 * std::numbers::pi);
    const double keep = std::min(1.0, std::max(0.0, (turns - low) / (high - low)));
    factors.push_back(static_cast<float>(1 / ((1 - keep) / factor + keep)));
  }
  return factors;
}

Status fill_scaling_gguf(const Hyperparameters& from, RopeConfig& rope) {
  constexpr Key kType{"rope.scaling.type", ""}, kFactor{"rope.scaling.factor", ""},
      kOld{"rope.scale_linear", ""};
  TRY(const std::string type, from.string_or(kType, from.has(kOld) ? "linear" : "none"));
  if (type == "none") return {};
  if (type != "linear")
    return from.bad(kType, Code::unsupported,
                    fmt::format("is '{}'; none and linear are supported", type));
  TRY(rope.linear_factor, from.f32_above(from.has(kOld) ? kOld : kFactor, 0));
  return {};
}

// The factors of Llama 3's scaling come as a tensor.
Status fill_factors_gguf(const GgufFile& file, RopeConfig& rope) {
  const TensorView* tensor = file.find("rope_freqs.weight");
  if (!tensor) return {};
  if (tensor->rows() != 1 || tensor->columns() != rope.dimensions / 2)
    return Error{Code::corrupt,
                 fmt::format("{}: tensor 'rope_freqs.weight' has shape [{}], [{}] is needed",
                             file.name(), fmt::join(tensor->shape, ", "), rope.dimensions / 2)};
  rope.factors.resize(rope.dimensions / 2);
  dequantize_row(tensor->type, tensor->data.data(), rope.factors.size(), rope.factors.data());
  for (const float factor : rope.factors)
    if (!(factor > 0) || !std::isfinite(factor))
      return Error{Code::corrupt, fmt::format("{}: tensor 'rope_freqs.weight' has the factor {}",
                                              file.name(), factor)};
  return {};
}

// Models that rotate only a part of the head dimensions are refused.
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
  const std::string newer = at + ".rope_type", older = at + ".type";
  const Key key{"", from.has({"", newer}) ? newer : older};
  TRY(const std::string type, from.string_or(key, "default"));
  if (type == "default") return {};
  if (type == "linear") {
    TRY(rope.linear_factor, from.f32_above({"", at + ".factor"}, 0));
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

Result<RopeConfig> rope_of(const Hyperparameters& from, const Attention& attn,
                           std::string_view parameters) {
  RopeConfig rope;
  const bool newer = !from.is_gguf() && from.json_at(parameters) != nullptr;
  const std::string at = newer ? std::string(parameters) : "rope_scaling";
  TRY(rope.base, from.f32_above_or({"rope.freq_base", newer ? at + ".rope_theta" : "rope_theta"}, 1,
                                   rope.base));
  constexpr Key kDimensions{"rope.dimension_count", ""};
  TRY(const std::uint64_t dimensions, from.unsigned_or(kDimensions, attn.key_dim));
  if (dimensions == 0 || dimensions % 2 != 0 || dimensions > attn.key_dim)
    return from.bad(kDimensions, Code::corrupt,
                    fmt::format("is {}; an even number up to the head's {} is needed", dimensions,
                                attn.key_dim));
  rope.dimensions = static_cast<std::uint32_t>(dimensions);
  if (from.is_gguf()) {
    TRY_STATUS(fill_scaling_gguf(from, rope));
    TRY_STATUS(fill_factors_gguf(from.gguf(), rope));
  } else {
    TRY_STATUS(fill_scaling_hf(from, at, rope));
  }
  return rope;
}

}  // namespace quire
