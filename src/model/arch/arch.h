// model/arch/arch.h - what an architecture is: a row with its names, how it differs from the common
// decoder, and its tensors.
//
// A new architecture is a file with such a row, and a line in the list in model/arch/archs.cc.
// Tensors have GGUF's names here; `hf` is what Hugging Face calls the same one, without the leading
// "model.". In both, N stands for the layer.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "model/config.h"
#include "model/hyperparameters.h"

namespace quire {

enum class Extent : std::uint8_t { none, hidden, feed_forward, queries, keys, head, vocabulary };

struct TensorRow {
  std::string_view name;       // "blk.N.attn_q.weight"
  std::string_view hf;         // "layers.N.self_attn.q_proj.weight"
  Extent rows = Extent::none;  // none: the tensor is a vector
  Extent columns = Extent::hidden;
};

struct Architecture {
  std::string_view name;                          // as in GGUF
  std::span<const std::string_view> model_types;  // as in config.json
  std::string_view hf_defaults;                   // JSON: what config.json may leave out
  Status (*fill)(const Hyperparameters& from, ModelConfig& config);  // sizes are there already
  std::span<const TensorRow> tensors;                                // besides the common ones
};

extern const Architecture kLlama, kGemma3, kQwen2, kQwen3;

std::span<const Architecture* const> architectures();
std::span<const TensorRow> common_tensors();
std::vector<std::string> tensor_names(const ModelConfig& config);  // all that the model needs
std::uint64_t extent_of(Extent extent, const ModelConfig& config);

// Pieces for `fill`.
inline constexpr Key kSlidingWindow{"attention.sliding_window", "sliding_window"};

// The model's rotary embedding: base, dimensions, and linear or Llama 3 scaling; another kind of
// scaling is an error. `parameters` is the path of its object in config.json ("rope_parameters", as
// newer files have it; older ones are understood too).
Result<RopeConfig> rope_of(const Hyperparameters& from, const ModelConfig& config,
                           std::string_view parameters = "rope_parameters");

// Windows of every layer from config.json's `layer_types`, if it has that key: `window` where it
// says sliding_attention.
Result<bool> fill_layer_types(const Hyperparameters& from, std::uint32_t window,
                              ModelConfig& config);

Result<std::uint32_t> window_of(const Hyperparameters& from);  // 0: none
Status need_activation(const Hyperparameters& from, Key key,
                       std::string_view name);  // config.json names it
Status refuse_if_true(const Hyperparameters& from,
                      Key key);  // biases and other variants we do not compute

}  // namespace quire
