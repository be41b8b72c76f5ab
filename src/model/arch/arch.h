// model/arch/arch.h - what an architecture is: its names, what its layers compute, and its tensors.
//
// A new architecture is a file with an Architecture, and a line in the list in model/arch/archs.cc.
// Its `fill` takes a common layer from model/arch/parts.h, changes what differs, and gives every
// layer its LayerSpec. Tensors have GGUF's names here; `hf` is Hugging Face's name of the tensor,
// without the leading "model.". In both, N stands for the layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/hyperparameters.h"

namespace quire {

// How many rows or columns a tensor of a layer has.
using Extent = std::uint64_t (*)(const ModelConfig& config, const LayerSpec& layer);

struct TensorEntry {
  std::string_view name;  // "blk.N.attn_q.weight"
  std::string_view hf;    // "layers.N.self_attn.q_proj.weight"
  Extent columns;
  Extent rows = nullptr;  // null: the tensor is a vector
};

struct Architecture {
  std::string_view name;                          // as in GGUF
  std::span<const std::string_view> model_types;  // as in config.json
  std::string_view hf_defaults;                   // JSON: what config.json may leave out
  // Fills the rest of a configuration that has layers, hidden, context, vocabulary and tied_head.
  Status (*fill)(const Hyperparameters& from, ModelConfig& config);
  std::span<const TensorEntry> tensors;  // of a layer: all that its spec calls for
};

extern const Architecture kLlama, kGemma3, kQwen2, kQwen3;

std::span<const Architecture* const> architectures();

// A tensor of a model by its name: "blk.12.attn_q.weight" is entry "blk.N.attn_q.weight" and layer 12.
struct NamedTensor {
  const TensorEntry* entry;
  std::uint32_t layer;  // 0 where the name has none
};
std::optional<NamedTensor> find_tensor(const ModelConfig& config, std::string_view name);
std::vector<std::uint64_t> tensor_shape(const ModelConfig& config, NamedTensor tensor);
std::string hf_name(NamedTensor tensor);  // "layers.12.self_attn.q_proj.weight"
std::vector<std::string> tensor_names(const ModelConfig& config);  // all that the model needs

}  // namespace quire
