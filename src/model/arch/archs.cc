#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "model/arch/parts.h"

namespace quire {
namespace {

constexpr const Architecture* kArchitectures[] = {&kLlama, &kGemma3, &kQwen2, &kQwen3};

// Tensors that every model has, besides those of its layers.
constexpr TensorEntry kModelTensors[] = {
    {"token_embd.weight", "embed_tokens.weight", extent::hidden, extent::vocabulary},
    {"output_norm.weight", "norm.weight", extent::hidden},
    {"output.weight", "lm_head.weight", extent::hidden, extent::vocabulary},
};

constexpr std::string_view kLayerMark = ".N.";

std::string with_layer(std::string_view pattern, std::uint32_t layer) {
  const std::size_t n = pattern.find(kLayerMark);
  if (n == pattern.npos) return std::string(pattern);
  return fmt::format("{}.{}.{}", pattern.substr(0, n), layer,
                     pattern.substr(n + kLayerMark.size()));
}

}  // namespace

std::span<const Architecture* const> architectures() { return kArchitectures; }

std::optional<NamedTensor> find_tensor(const ModelConfig& config, std::string_view name) {
  const auto in = [](std::span<const TensorEntry> entries, std::string_view pattern) {
    const auto found = std::ranges::find(entries, pattern, &TensorEntry::name);
    return found == entries.end() ? nullptr : &*found;
  };
  if (const TensorEntry* entry = in(kModelTensors, name)) return NamedTensor{entry, 0};
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return {};
  std::uint32_t layer = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, layer);
  if (error != std::errc() || layer >= config.layers) return {};
  const TensorEntry* entry = in(config.tensors, "blk.N" + std::string(rest, end));
  return entry ? std::optional(NamedTensor{entry, layer}) : std::nullopt;
}

std::vector<std::uint64_t> tensor_shape(const ModelConfig& config, NamedTensor tensor) {
  const auto& [entry, index] = tensor;
  const LayerSpec& layer = config.per_layer[index];
  if (entry->rows == nullptr) return {entry->columns(config, layer)};
  return {entry->rows(config, layer), entry->columns(config, layer)};
}

std::string hf_name(NamedTensor tensor) { return with_layer(tensor.entry->hf, tensor.layer); }

std::vector<std::string> tensor_names(const ModelConfig& c) {
  std::vector<std::string> names;
  for (const TensorEntry& entry : kModelTensors)
    if (entry.name != "output.weight" || !c.tied_head) names.emplace_back(entry.name);
  for (std::uint32_t l = 0; l < c.layers; ++l)
    for (const TensorEntry& entry : c.tensors) names.push_back(with_layer(entry.name, l));
  return names;
}

}  // namespace quire
