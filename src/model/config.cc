#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "model/arch/arch.h"
#include "model/hyperparameters.h"
#include "tensor/gguf.h"
#include "tensor/printable.h"

namespace quire {
namespace {

struct SizeRow {
  std::uint32_t ModelConfig::*field;
  Key key;
  std::uint64_t max;  // far above any model, low enough that products stay inside 64 bits
};

constexpr Key kHidden{"embedding_length", "hidden_size"};
constexpr Key kQueryHeads{"attention.head_count", "num_attention_heads"};
constexpr Key kKvHeads{"attention.head_count_kv", "num_key_value_heads"};
constexpr Key kHeadDim{"attention.key_length", "head_dim"};
constexpr Key kEpsilon{"attention.layer_norm_rms_epsilon", "rms_norm_eps"};
constexpr std::uint64_t kHeadDimMax = 4096, kVocabularyMax = 100'000'000;

constexpr SizeRow kSizes[] = {
    {&ModelConfig::layers, {"block_count", "num_hidden_layers"}, 4096},
    {&ModelConfig::hidden, kHidden, 1'000'000},
    {&ModelConfig::feed_forward, {"feed_forward_length", "intermediate_size"}, 10'000'000},
    {&ModelConfig::query_heads, kQueryHeads, 65'536},
    {&ModelConfig::context, {"context_length", "max_position_embeddings"}, 1'000'000'000},
};

Result<std::uint32_t> size_of(const Hyperparameters& from, Key key, std::uint64_t max) {
  TRY(const std::uint64_t value, from.unsigned_of(key));
  if (value == 0 || value > max)
    return from.bad(key, Code::corrupt, fmt::format("is {}; 1 to {} make sense", value, max));
  return static_cast<std::uint32_t>(value);
}

Status fill_heads(const Hyperparameters& from, ModelConfig& c) {
  c.kv_heads = c.query_heads;
  if (from.has(kKvHeads)) {
    TRY(c.kv_heads, size_of(from, kKvHeads, c.query_heads));
  }
  if (c.query_heads % c.kv_heads != 0)
    return from.bad(kQueryHeads, Code::corrupt,
                    fmt::format("is {}, no multiple of '{}', which is {}", c.query_heads,
                                from.spelled(kKvHeads), c.kv_heads));
  if (from.has(kHeadDim)) {
    TRY(c.head_dim, size_of(from, kHeadDim, kHeadDimMax));
  } else {
    if (c.hidden % c.query_heads != 0)
      return from.bad(kHidden, Code::corrupt,
                      fmt::format("is {}, no multiple of the {} heads, and '{}' is missing",
                                  c.hidden, c.query_heads, from.spelled(kHeadDim)));
    c.head_dim = c.hidden / c.query_heads;
  }
  if (c.head_dim % 2 != 0 || c.head_dim > kHeadDimMax)
    return from.bad(from.has(kHeadDim) ? kHeadDim : kHidden, Code::corrupt,
                    fmt::format("makes heads of {}; an even size up to {} makes sense", c.head_dim,
                                kHeadDimMax));
  constexpr Key kValueDim{"attention.value_length", "v_head_dim"};
  TRY(const std::uint64_t value_dim, from.unsigned_or(kValueDim, c.head_dim));
  if (value_dim != c.head_dim)
    return from.bad(kValueDim, Code::unsupported,
                    fmt::format("is {}; values of another size than keys ({}) are not supported",
                                value_dim, c.head_dim));
  return {};
}

Status fill_common(const Hyperparameters& from, ModelConfig& c) {
  for (const SizeRow& row : kSizes) {
    TRY(c.*row.field, size_of(from, row.key, row.max));
  }
  TRY_STATUS(fill_heads(from, c));
  TRY(c.norm_epsilon, from.f32_of(kEpsilon));
  if (!(c.norm_epsilon >= 0) || c.norm_epsilon > 1)
    return from.bad(kEpsilon, Code::corrupt,
                    fmt::format("is {}; 0 to 1 makes sense", c.norm_epsilon));
  constexpr Key kExperts{"expert_count", "num_local_experts"};
  TRY(const std::uint64_t experts, from.unsigned_or(kExperts, 0));
  if (experts != 0)
    return from.bad(kExperts, Code::unsupported,
                    fmt::format("is {}; mixtures of experts are not supported", experts));
  c.attention_scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  c.per_layer.resize(c.layers);
  return {};
}

// The factors of Llama 3's scaling come as a tensor.
Status fill_rope_factors(const GgufFile& file, ModelConfig& c) {
  const TensorView* tensor = file.find("rope_freqs.weight");
  if (!tensor) return {};
  RopeConfig& rope = c.ropes.front();
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

std::string known_architectures(bool gguf) {
  std::string known;
  for (const Architecture* a : architectures()) {
    if (gguf)
      known += fmt::format(" {}", a->name);
    else
      known += fmt::format(" {}", fmt::join(a->model_types, " "));
  }
  return known;
}

}  // namespace

Result<ModelConfig> config_from_gguf(const GgufFile& file) {
  TRY(const std::string_view name, file.string_of("general.architecture"));
  TRY(const std::uint64_t parts, file.unsigned_or("split.count", 1));
  if (parts > 1)
    return Error{Code::unsupported,
                 fmt::format("{}: key 'split.count' is {}: merge the parts into one file first",
                             file.name(), parts)};
  for (const Architecture* a : architectures()) {
    if (a->name != name) continue;
    const Hyperparameters from(file, a->name);
    ModelConfig c;
    c.architecture = a->name;
    TRY(const std::string_view own_name, file.string_or("general.name", ""));
    c.name = own_name;
    TRY_STATUS(fill_common(from, c));
    const TensorView* embedding = file.find("token_embd.weight");
    if (!embedding)
      return Error{Code::not_found, file.name() + ": tensor 'token_embd.weight' is missing"};
    if (embedding->rows() > kVocabularyMax)
      return Error{Code::corrupt, fmt::format("{}: tensor 'token_embd.weight' has {} rows",
                                              file.name(), embedding->rows())};
    c.vocabulary = static_cast<std::uint32_t>(embedding->rows());
    c.tied_head = file.find("output.weight") == nullptr;
    TRY_STATUS(a->fill(from, c));
    TRY_STATUS(fill_rope_factors(file, c));
    return c;
  }
  return Error{Code::unsupported,
               fmt::format("{}: key 'general.architecture' is {}; there are:{}", file.name(),
                           printable(name), known_architectures(true))};
}

Result<ModelConfig> config_from_hf(std::string_view config_json, const std::string& file_name) {
  Result<Json> parsed = parse_json(config_json);
  if (!parsed.ok()) return Error{Code::corrupt, file_name + ": " + parsed.error().message};
  Json object = std::move(parsed.value());
  if (!object.is_object()) return Error{Code::corrupt, file_name + ": is not a JSON object"};
  // Models that see images too keep what we need in an object of its own.
  if (const auto text = object.find("text_config"); text != object.end() && text->is_object())
    object = Json(*text);

  TRY(const std::string type, Hyperparameters(object, file_name).string_of({"", "model_type"}));
  for (const Architecture* a : architectures()) {
    if (std::find(a->model_types.begin(), a->model_types.end(), type) == a->model_types.end())
      continue;
    Json merged = Json::parse(a->hf_defaults);
    for (const auto& [key, value] : object.items())
      if (!value.is_null()) merged[key] = value;
    const Hyperparameters from(merged, file_name);
    ModelConfig c;
    c.architecture = a->name;
    TRY_STATUS(fill_common(from, c));
    TRY(c.vocabulary, size_of(from, {"", "vocab_size"}, kVocabularyMax));
    TRY(c.tied_head, from.bool_or({"", "tie_word_embeddings"}, false));
    TRY_STATUS(a->fill(from, c));
    return c;
  }
  return Error{Code::unsupported, fmt::format("{}: key 'model_type' is {}; there are:{}", file_name,
                                              printable(type), known_architectures(false))};
}

}  // namespace quire
