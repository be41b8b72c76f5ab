// model/arch/arch.h - what an architecture is: its names, what its layers compute, and its tensors.
//
// A new architecture is a file with an Architecture, and a line in the list in model/arch/archs.cc.
// Its `fill` takes a common layer from model/arch/parts.h, changes what differs, and gives every
// layer its LayerSpec. Tensors have the names here that GGUF files of Llama give them; `hf` is Hugging
// Face's name of the tensor, without the leading "model.". N stands for the layer, and E for one of
// its experts.
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

// How many rows or columns a tensor of a layer has; 0: the layer has no such tensor.
using Extent = std::uint64_t (*)(const ModelConfig& config, const LayerSpec& layer);

struct TensorEntry {
  std::string_view name;  // "blk.N.attn_q.weight"
  std::string_view hf;    // "layers.N.self_attn.q_proj.weight"
  Extent columns;
  Extent rows = nullptr;       // null: the tensor is a vector
  std::string_view gguf = {};  // as GGUF files of this architecture call it; empty: `name`
};

// Where the rows of a tensor are that a file has as a part of another one.
struct TensorPiece {
  std::string_view name;      // "blk.N.attn_k.weight"
  std::string_view gguf, hf;  // the whole tensor in the two forms; empty: no file of it has that
  Extent first, whole;        // its first row, and how many rows the whole one has
  bool transposed = false;    // the whole one is stored as [inputs, outputs]
  // Where row `r` of the whole one (or of an expert's part of it) is stored, if not at r.
  std::uint64_t (*stored)(const LayerSpec& layer, std::uint64_t r) = nullptr;
  Extent each = nullptr;  // rows from one expert's part of the whole one to the next
  // So many rows of each query head's part of the whole one, its first ones, are the columns of that
  // head's part of the piece. A type that cannot be turned is decoded to f32.
  Extent turned_heads = nullptr;
};

struct Architecture {
  std::string_view name;                          // as in GGUF
  std::span<const std::string_view> model_types;  // as in config.json
  std::string_view hf_defaults;                   // JSON: what config.json may leave out
  // Fills the rest of a configuration that has layers, hidden, context, vocabulary and tied_head.
  Status (*fill)(const Hyperparameters& from, ModelConfig& config);
  // Of a layer: all that its spec calls for. Of the model: what is called otherwise than usual.
  std::span<const TensorEntry> tensors;
  std::span<const TensorPiece> pieces = {};  // beside those that any file may have
};

extern const Architecture kLlama, kGemma2, kGemma3, kQwen2, kQwen3, kSmolLm3, kGranite, kPhi3,
    kOlmo2, kGlm4, kGpt2, kStarCoder2, kFalcon, kQwen2Moe, kQwen3Moe, kGptOss, kGlm4Moe, kDeepSeek2;

std::span<const Architecture* const> architectures();

// A tensor of a model by its name: "blk.12.attn_q.weight" is entry "blk.N.attn_q.weight" and layer 12.
struct NamedTensor {
  const TensorEntry* entry;
  std::uint32_t layer;  // 0 where the name has none
  std::uint32_t expert = 0;
};
std::optional<NamedTensor> find_tensor(const ModelConfig& config, std::string_view name);
std::vector<std::uint64_t> tensor_shape(const ModelConfig& config, NamedTensor tensor);
// As the file spells it: "layers.12.self_attn.q_proj.weight".
std::string stored_name(NamedTensor tensor, bool gguf);

// A tensor as a part of another one, in the order in which they are to be looked for: what the
// architecture has, and after the tensor itself what any may have.
struct NamedPiece {
  const TensorPiece* piece;
  std::string whole;  // as the file spells it
  bool is_common;
};
std::vector<NamedPiece> find_pieces(const ModelConfig& config, NamedTensor tensor, bool gguf);

std::vector<std::string> tensor_names(const ModelConfig& config);  // all that the model needs

}  // namespace quire
