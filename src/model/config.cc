#include "model/config.h"

#include <fmt/format.h>

#include "base/json.h"
#include "model/arch/arch.h"
#include "model/hyperparameters.h"
#include "tensor/gguf.h"
#include "tensor/printable.h"

namespace quire {
namespace {

constexpr std::uint64_t kVocabularyMax = 100'000'000;

// Limits are far above any model, and low enough that products fit in 64 bits.
Status fill_sizes(const Hyperparameters& from, ModelConfig& c) {
  TRY(c.layers, from.size_of({"block_count", "num_hidden_layers"}, 4096));
  TRY(c.hidden, from.size_of({"embedding_length", "hidden_size"}, 1'000'000));
  TRY(c.context, from.size_of({"context_length", "max_position_embeddings"}, 1'000'000'000));
  return {};
}

// Numbers that all architectures have. The architecture's `fill` reads the rest.
Status fill_layers(const Architecture& a, const Hyperparameters& from, ModelConfig& c) {
  c.architecture = a.name;
  c.tensors = a.tensors;
  c.pieces = a.pieces;
  TRY_STATUS(a.fill(from, c));
  serve_context(c, c.context);
  const LayerSpec& first = c.per_layer.front();
  c.query_heads = first.attn.query_heads;
  c.kv_heads = first.attn.kv_heads;
  c.head_dim = first.attn.key_dim;
  c.feed_forward = first.ffn.experts ? first.ffn.experts.width : first.ffn.width;
  return {};
}

// What older configurations call the same, and newer ones.
constexpr std::pair<const char*, const char*> kOldNames[] = {
    {"n_embd", "hidden_size"},
    {"n_layer", "num_hidden_layers"},
    {"n_head", "num_attention_heads"},
    {"n_positions", "max_position_embeddings"},
    {"n_inner", "intermediate_size"},
    {"ffn_hidden_size", "intermediate_size"},
    {"num_kv_heads", "num_key_value_heads"},
    {"num_local_experts", "num_experts"},
};

// The architecture that `names` gives the file's name.
Result<const Architecture*> find_architecture(
    std::string_view wanted, const std::string& file, std::string_view key,
    std::span<const std::string_view> (*names)(const Architecture&)) {
  std::string known;
  for (const Architecture* a : architectures())
    for (const std::string_view name : names(*a)) {
      if (name == wanted) return a;
      known.append(" ").append(name);
    }
  return Error{Code::unsupported, fmt::format("{}: key '{}' is {}; there are:{}", file, key,
                                              printable(wanted), known)};
}

}  // namespace

void serve_context(ModelConfig& config, std::uint32_t context) {
  for (RopeConfig& rope : config.ropes)
    if (!rope.long_factors.empty())
      rope.factors = context > rope.trained ? rope.long_factors : rope.short_factors;
}

std::string position_scheme(const ModelConfig& config) {
  for (const RopeConfig& rope : config.ropes)
    if (!rope.long_factors.empty())
      return rope.factors == rope.long_factors ? "rope long" : "rope short";
  return config.learned_positions ? "learned" : "rope";
}

Result<ModelConfig> config_from_gguf(const GgufFile& file) {
  constexpr std::string_view kArchitecture = "general.architecture";
  TRY(const std::string_view name, file.string_of(kArchitecture));
  TRY(const std::uint64_t parts, file.unsigned_or("split.count", 1));
  if (parts > 1 && file.parts() != parts)
    return Error{
        Code::unsupported,
        fmt::format("{}: key 'split.count' is {}, and this is one part alone", file.name(), parts)};
  TRY(const Architecture* a,
      find_architecture(name, file.name(), kArchitecture,
                        [](const Architecture& of) { return std::span(&of.name, 1); }));
  const Hyperparameters from(file, a->name);
  ModelConfig c;
  TRY(c.name, file.string_or("general.name", ""));
  TRY_STATUS(fill_sizes(from, c));
  const TensorView* embedding = file.find("token_embd.weight");
  if (!embedding)
    return Error{Code::not_found, file.name() + ": tensor 'token_embd.weight' is missing"};
  if (embedding->rows() > kVocabularyMax)
    return Error{Code::corrupt, fmt::format("{}: tensor 'token_embd.weight' has {} rows",
                                            file.name(), embedding->rows())};
  c.vocabulary = static_cast<std::uint32_t>(embedding->rows());
  c.tied_head = file.find("output.weight") == nullptr;
  TRY_STATUS(fill_layers(*a, from, c));
  return c;
}

Result<ModelConfig> config_from_hf(std::string_view config_json, const std::string& file_name) {
  Result<Json> parsed = parse_json(config_json);
  if (!parsed.ok()) return Error{Code::corrupt, file_name + ": " + parsed.error().message};
  Json object = std::move(parsed.value());
  if (!object.is_object()) return Error{Code::corrupt, file_name + ": is not a JSON object"};
  // Models that also see images keep the language model's numbers in an object of their own.
  if (const auto text = object.find("text_config"); text != object.end() && text->is_object())
    object = Json(*text);

  constexpr Key kType{"", "model_type"};
  TRY(const std::string type, Hyperparameters(object, file_name).string_of(kType));
  TRY(const Architecture* a,
      find_architecture(type, file_name, kType.hf,
                        [](const Architecture& of) { return of.model_types; }));
  Json merged = Json::parse(a->hf_defaults);
  for (const auto& [key, value] : object.items())
    if (!value.is_null()) merged[key] = value;
  for (const auto& [old, name] : kOldNames)
    if (merged.contains(old) && !merged.contains(name)) merged[name] = merged[old];
  const Hyperparameters from(merged, file_name);
  ModelConfig c;
  TRY_STATUS(fill_sizes(from, c));
  TRY(c.vocabulary, from.size_of({"", "vocab_size"}, kVocabularyMax));
  TRY(c.tied_head, from.bool_or({"", "tie_word_embeddings"}, false));
  TRY_STATUS(fill_layers(*a, from, c));
  return c;
}

}  // namespace quire
