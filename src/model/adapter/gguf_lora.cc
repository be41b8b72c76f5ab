// Adapters as GGUF files (llama.cpp's convert_lora_to_gguf.py). The converter has multiplied rslora
// and alpha_pattern away: alpha is one number for all.
#include <fmt/format.h>

#include <cmath>

#include "model/adapter/adapter_file.h"
#include "tensor/gguf.h"

namespace quire {

Result<AdapterFile> parse_gguf_adapter(std::span<const std::byte> bytes, const std::string& name) {
  TRY(const GgufFile file, GgufFile::parse(bytes, name));
  TRY(const std::string_view type, file.string_or("general.type", "model"));
  if (type != "adapter")
    return Error{Code::invalid,
                 fmt::format("{}: is a GGUF file of type {}, not an adapter", name, type)};
  TRY(const std::string_view kind, file.string_or("adapter.type", ""));
  if (kind != "lora")
    return Error{Code::unsupported,
                 fmt::format("{}: is an adapter of type '{}'; only lora is read", name, kind)};
  AdapterFile made{.name = name, .is_gguf = true, .architecture = {}};
  TRY(const std::string_view architecture, file.string_of("general.architecture"));
  made.architecture = architecture;
  TRY(const float alpha, file.f32_or("adapter.lora.alpha", 0));
  if (!std::isfinite(alpha) || alpha < 0)
    return Error{Code::corrupt, fmt::format("{}: key 'adapter.lora.alpha' is {}", name, alpha)};
  if (constexpr std::string_view key = "adapter.alora.invocation_tokens"; file.has(key)) {
    TRY(const GgufNumbers<std::int64_t> stored, file.integers_of(key));
    if (stored.size() > kInvocationTokensMax) return check_invocation({}, name).error();
    const std::vector<std::int64_t> tokens(stored.begin(), stored.end());
    TRY_STATUS(check_invocation(tokens, name));
    made.invocation.assign(tokens.begin(), tokens.end());
  }
  AdapterPairs pairs(name);
  for (const TensorView& tensor : file.tensors()) {
    std::string_view module = tensor.name;
    constexpr std::string_view kA = ".weight.lora_a", kB = ".weight.lora_b";
    const bool is_a = module.ends_with(kA);
    if (!is_a && !module.ends_with(kB))
      return Error{Code::unsupported,
                   fmt::format("{}: tensor '{}' is no LoRA matrix", name, tensor.name)};
    module.remove_suffix(kA.size());
    if (module == "token_embd" || module == "output")
      return Error{Code::unsupported, fmt::format("{}: has tensor '{}': adapters of embeddings are "
                                                  "not computed",
                                                  name, tensor.name)};
    TRY_STATUS(pairs.add(std::string(module), is_a ? AdapterPairs::Side::a : AdapterPairs::Side::b,
                         tensor));
  }
  TRY(made.pairs, pairs.finish());
  for (AdapterPair& pair : made.pairs)
    pair.scale =
        alpha == 0 ? 1 : static_cast<float>(double{alpha} / static_cast<double>(pair.a.rows()));
  return made;
}

}  // namespace quire
