#include "model/adapter/adapter_targets.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {
namespace {

// By Adapted.
constexpr const char* kAdaptedNames[kAdaptedCount] = {
    "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"};

// What Hugging Face's classes put in front of "layers.0"; the longest first.
constexpr std::string_view kModulePrefixes[] = {"model.language_model.", "language_model.model.",
                                                "transformer.", "model.", ""};

constexpr std::string_view kWeight = ".weight";

// Rows of q and k in files of one form, where the model's own files may be of the other.
std::uint32_t interleaved_in(const ModelConfig& config, const Attention& a, bool base_is_gguf,
                             bool is_gguf) {
  if (is_gguf == base_is_gguf || !config.paired_in_gguf) return a.interleaved;
  return is_gguf ? a.key_dim : 0;
}

std::optional<NamedTensor> adapted_tensor(const ModelConfig& config, std::uint32_t layer,
                                          Adapted linear) {
  return find_tensor(config, adapted_name(layer, linear));
}

}  // namespace

std::string adapted_name(std::uint32_t layer, Adapted linear) {
  return fmt::format("blk.{}.{}.weight", layer, kAdaptedNames[static_cast<std::size_t>(linear)]);
}

std::optional<std::pair<std::uint32_t, std::uint32_t>> adapted_shape(const ModelConfig& config,
                                                                     std::uint32_t layer,
                                                                     Adapted linear) {
  const auto tensor = adapted_tensor(config, layer, linear);
  if (!tensor) return {};
  const std::vector<std::uint64_t> shape = tensor_shape(config, *tensor);
  return std::pair(static_cast<std::uint32_t>(shape[0]), static_cast<std::uint32_t>(shape[1]));
}

std::uint64_t AdapterPlace::stored(const ModelConfig& config, std::uint64_t o) const {
  const std::uint64_t row = heads.stored(o, unpadded);
  if (piece == nullptr) return row;
  const std::uint64_t at = piece->first(config, *spec) + row;
  return piece->stored ? piece->stored(*spec, at) : at;
}

AdapterTargets::AdapterTargets(const ModelConfig& config, bool base_is_gguf, bool file_is_gguf)
    : config_(config), is_gguf_(file_is_gguf) {
  for (std::uint32_t l = 0; l < config.layers; ++l) {
    const LayerSpec& spec = config.per_layer[l];
    const Attention& a = spec.attn;
    const std::uint32_t interleaved = interleaved_in(config, a, base_is_gguf, file_is_gguf);
    for (std::size_t i = 0; i < kAdaptedCount; ++i) {
      const auto linear = static_cast<Adapted>(i);
      const auto tensor = adapted_tensor(config, l, linear);
      if (!tensor) continue;
      const auto [outputs, inputs] = *adapted_shape(config, l, linear);
      AdapterPlace place{
          .layer = l, .linear = linear, .outputs = outputs, .inputs = inputs, .spec = &spec};
      if (linear == Adapted::q || linear == Adapted::k)
        place.heads = {.dim = a.key_dim, .rotated = true, .interleaved = interleaved};
      const auto add = [&](std::string name, const TensorPiece* piece) {
        if (!name.ends_with(kWeight)) return;
        name.resize(name.size() - kWeight.size());
        place.piece = piece;
        places_[std::move(name)].push_back(place);
      };
      add(stored_name(*tensor, is_gguf_), nullptr);
      for (const NamedPiece& piece : find_pieces(config, *tensor, is_gguf_))
        add(piece.whole, piece.piece);
    }
  }
}

Result<std::vector<AdapterPlace>> AdapterTargets::find(std::string_view module,
                                                       std::uint64_t outputs,
                                                       std::uint64_t inputs) const {
  auto found = places_.find(module);
  for (const std::string_view prefix : kModulePrefixes) {
    if (found != places_.end() || is_gguf_) break;
    if (module.starts_with(prefix)) found = places_.find(module.substr(prefix.size()));
  }
  if (found == places_.end()) {
    const bool expert = module.find("expert") != module.npos || module.find("exps") != module.npos;
    return Error{Code::unsupported,
                 fmt::format("module '{}' is {}; adapters of q, k, v, o, gate, up and down of "
                             "layers 0 to {} are computed",
                             module, expert ? "an expert, or of one" : "none that is adapted here",
                             config_.layers - 1)};
  }
  std::vector<AdapterPlace> fit;
  for (const AdapterPlace& place : found->second) {
    const std::uint64_t rows =
        place.piece ? place.piece->whole(config_, *place.spec) : place.outputs;
    if (rows == outputs && place.inputs == inputs) fit.push_back(place);
  }
  if (!fit.empty()) return fit;
  const AdapterPlace& first = found->second.front();
  return Error{Code::invalid,
               fmt::format("module '{}' has {} inputs and {} outputs, the model's has {} and {}: "
                           "the adapter is for another model",
                           module, inputs, outputs, first.inputs,
                           first.piece ? first.piece->whole(config_, *first.spec) : first.outputs)};
}

}  // namespace quire
