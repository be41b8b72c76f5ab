// model/adapter/adapter_targets.h - which linear layers of a model a module of an adapter file stands
// for, and in which rows of its B matrix each of them is.
//
//   const AdapterTargets targets(config, base_is_gguf, file.is_gguf);
//   TRY(const auto places, targets.find("model.layers.3.self_attn.qkv_proj", outputs, inputs));
//   // three places: q, k and v of layer 3
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "model/adapter/adapted.h"
#include "model/arch/arch.h"
#include "model/weights.h"

namespace quire {

std::string adapted_name(std::uint32_t layer, Adapted linear);  // "blk.3.attn_q.weight"
// Outputs and inputs of a linear layer; none: the layer has none that adapters change.
std::optional<std::pair<std::uint32_t, std::uint32_t>> adapted_shape(const ModelConfig& config,
                                                                     std::uint32_t layer,
                                                                     Adapted linear);

struct AdapterPlace {
  std::uint32_t layer = 0;
  Adapted linear = Adapted::q;
  std::uint32_t outputs = 0, inputs = 0;
  HeadRows heads = {};  // the order of rows in files of the adapter's form
  const TensorPiece* piece =
      nullptr;  // of a module that has the rows of several; null: all are its own
  const LayerSpec* spec = nullptr;

  // The row of the file's B that is row `o` of this linear layer, as the loader orders it.
  std::uint64_t stored(const ModelConfig& config, std::uint64_t o) const;
};

class AdapterTargets {
 public:
  AdapterTargets(const ModelConfig& config, bool base_is_gguf, bool file_is_gguf);

  // What the module is, whose B has so many outputs and A so many inputs.
  Result<std::vector<AdapterPlace>> find(std::string_view module, std::uint64_t outputs,
                                         std::uint64_t inputs) const;

 private:
  const ModelConfig& config_;
  bool is_gguf_;
  std::map<std::string, std::vector<AdapterPlace>, std::less<>> places_;  // by module
};

}  // namespace quire
