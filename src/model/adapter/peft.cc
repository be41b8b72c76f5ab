// Adapters as PEFT saves them (peft 0.21: LoraConfig, save_and_load.py, get_pattern_key).
#include <fmt/format.h>

#include <cmath>

#include "base/json.h"
#include "model/adapter/adapter_file.h"
#include "tensor/safetensors.h"

namespace quire {
namespace {

constexpr std::string_view kPeftPrefix = "base_model.model.";

// What changes numbers beside the two matrices, by its key.
constexpr std::pair<const char*, const char*> kPeftRefused[] = {
    {"use_dora", "DoRA"},
    {"lora_bias", "biases of LoRA matrices"},
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"arrow_config", "Arrow routing"},
    {"kasa_config", "KaSA"},
    {"monteclora_config", "MonteCLoRA"},
    {"modules_to_save", "whole modules that were trained"},
    {"target_parameters", "adapters of parameters"},
    {"layer_replication", "replicated layers"},
    {"trainable_token_indices", "trained tokens"},
};
// Of init_lora_weights: these change the model, too.
constexpr std::string_view kChangesBase[] = {"pissa", "olora", "corda", "loftq", "lora_ga"};

bool says_something(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  return !((value.is_array() || value.is_object()) && value.empty());
}

class PeftConfig {
 public:
  PeftConfig(const Json& json, const std::string& name) : json_(json), name_(name) {}

  Status check() const {
    if (!json_.is_object()) return bad(Code::corrupt, "is no object");
    const Json* type = find("peft_type");
    if (type == nullptr || *type != "LORA")
      return bad(Code::unsupported, fmt::format("has peft_type {}; only LORA is read",
                                                type ? type->dump() : std::string("null")));
    for (const auto& [key, what] : kPeftRefused)
      if (const Json* value = find(key); value && says_something(*value))
        return bad(Code::unsupported, fmt::format("has '{}': {} are not computed", key, what));
    if (const Json* bias = find("bias"); bias && says_something(*bias) && *bias != "none")
      return bad(Code::unsupported,
                 fmt::format("has bias {}: trained biases are not computed", bias->dump()));
    if (const Json* init = find("init_lora_weights"); init && init->is_string())
      for (const std::string_view kind : kChangesBase)
        if (init->get_ref<const std::string&>().starts_with(kind))
          return bad(Code::unsupported,
                     fmt::format("has init_lora_weights {}, which changes the model's own "
                                 "weights; save it as a plain LoRA",
                                 init->dump()));
    return {};
  }

  // Of a module; `rank` is what its matrices have.
  Result<float> scale(const std::string& module, std::uint64_t rank) const {
    TRY(const double r, number_for("r", "rank_pattern", module));
    TRY(const double alpha, number_for("lora_alpha", "alpha_pattern", module));
    if (r != static_cast<double>(rank))
      return bad(
          Code::corrupt,
          fmt::format("says that module '{}' has rank {}; its matrices have {}", module, r, rank));
    const Json* rs = find("use_rslora");
    if (rs && !rs->is_boolean() && !rs->is_null())
      return bad(Code::corrupt, "has a use_rslora that is not true or false");
    const double by = rs && says_something(*rs) ? std::sqrt(r) : r;
    const auto scale = static_cast<float>(alpha / by);
    if (!std::isfinite(scale))
      return bad(Code::corrupt, fmt::format("has a lora_alpha of {}, which is too large", alpha));
    return scale;
  }

  Result<std::vector<TokenId>> invocation() const {
    const Json* list = find("alora_invocation_tokens");
    if (list == nullptr || list->is_null()) return std::vector<TokenId>{};
    std::vector<std::int64_t> tokens;
    for (const Json& t : list->is_array() ? *list : Json::array())
      tokens.push_back(t.is_number_integer() ? t.get<std::int64_t>() : -1);
    TRY_STATUS(check_invocation(tokens, name_));
    return std::vector<TokenId>(tokens.begin(), tokens.end());
  }

 private:
  const Json* find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  Error bad(Code code, std::string_view what) const {
    return {code, fmt::format("{}: adapter_config.json {}", name_, what)};
  }

  Result<double> number_for(const char* key, const char* patterns,
                            const std::string& module) const {
    const Json* value = find(key);
    if (const Json* listed = find(patterns); listed && says_something(*listed)) {
      if (!listed->is_object())
        return bad(Code::corrupt, fmt::format("has a '{}' that is no object", patterns));
      for (const auto& [pattern, own] : listed->items()) {
        const auto means = pattern_means(pattern, module);
        if (!means.ok())
          return bad(Code::unsupported,
                     fmt::format("has '{}' in '{}': {}", pattern, patterns, means.error().message));
        if (!means.value()) continue;
        value = &own;
        break;
      }
    }
    if (value == nullptr || value->is_null()) return 8.0;  // PEFT's default of both
    if (!value->is_number() || !(value->get<double>() > 0) || value->get<double>() > 1e30)
      return bad(Code::corrupt,
                 fmt::format("has {} {}; it must be a number above 0", key,
                             value->is_number() ? value->dump() : "of another type"));
    return value->get<double>();
  }

  const Json& json_;
  const std::string& name_;
};

Error unknown_tensor(const std::string& file, const std::string& tensor) {
  constexpr std::pair<std::string_view, std::string_view> kKnown[] = {
      {"lora_embedding_", "adapters of embeddings"},
      {"lora_magnitude_vector", "DoRA's magnitudes"},
      {"modules_to_save", "whole modules that were trained"},
      {"bias", "trained biases"}};
  for (const auto& [part, what] : kKnown)
    if (tensor.find(part) != tensor.npos)
      return {Code::unsupported,
              fmt::format("{}: has tensor '{}': {} are not computed", file, tensor, what)};
  return {Code::unsupported, fmt::format("{}: tensor '{}' is no LoRA matrix", file, tensor)};
}

}  // namespace

// PEFT: re.match(r"(.*\.)?(KEY)$", module), where a dot of the key is any character.
Result<bool> pattern_means(std::string_view key, std::string_view module) {
  const bool from_start = key.starts_with('^');
  if (from_start) key.remove_prefix(1);
  if (key.ends_with('$')) key.remove_suffix(1);
  std::string wanted;  // '\0' stands for any character
  for (std::size_t i = 0; i < key.size(); ++i) {
    const bool dot = key[i] == '\\' && i + 1 < key.size() && key[i + 1] == '.';
    if (dot) ++i;
    if (!dot && std::string_view("\\*+?[](){}|^$").find(key[i]) != std::string_view::npos)
      return Error{Code::unsupported,
                   "regular expressions are not read; name the module, or the end of its name"};
    wanted += !dot && key[i] == '.' ? '\0' : key[i];
  }
  if (wanted.size() > module.size()) return false;
  const std::size_t first = module.size() - wanted.size();
  if (first > 0 && (from_start || module[first - 1] != '.')) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] != '\0' && wanted[i] != module[first + i]) return false;
  return true;
}

Result<AdapterFile> parse_peft(std::string_view config_json, std::span<const std::byte> tensors,
                               const std::string& name) {
  const auto json = parse_json(config_json, {.values_max = 1 << 18, .object_keys_max = 1 << 14});
  if (!json.ok())
    return Error{Code::corrupt,
                 fmt::format("{}: adapter_config.json: {}", name, json.error().message)};
  const PeftConfig config(json.value(), name);
  TRY_STATUS(config.check());
  AdapterFile made{.name = name, .is_gguf = false, .architecture = {}};
  TRY(made.invocation, config.invocation());
  TRY(const SafetensorsFile file, SafetensorsFile::parse(tensors, name));
  TRY_STATUS(file.check_types());
  AdapterPairs pairs(name);
  for (const TensorView& tensor : file.tensors()) {
    std::string_view module = tensor.name;
    if (!module.starts_with(kPeftPrefix)) return unknown_tensor(name, tensor.name);
    module.remove_prefix(kPeftPrefix.size());
    constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
    const bool is_a = module.ends_with(kA);
    if (!is_a && !module.ends_with(kB)) return unknown_tensor(name, tensor.name);
    module.remove_suffix(kA.size());
    TRY_STATUS(pairs.add(std::string(module), is_a ? AdapterPairs::Side::a : AdapterPairs::Side::b,
                         tensor));
  }
  TRY(made.pairs, pairs.finish());
  for (AdapterPair& pair : made.pairs) {
    TRY(pair.scale, config.scale(pair.module, pair.a.rows()));
  }
  return made;
}

}  // namespace quire
