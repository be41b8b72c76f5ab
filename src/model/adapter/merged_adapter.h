// model/adapter/merged_adapter.h - an adapter that becomes part of a model's weights when they are
// loaded: W + scale B A, computed in f32.
//
// Tensors in F32, F16 and BF16 keep their type and are rounded once. Those in any other type are
// stored in Q8_0, whatever they were: their own type may be too coarse for what is added.
//
//   TRY(auto merged, MergedAdapter::read(path, config, base_is_gguf));
//   if (merged->changes("blk.0.attn_q.weight")) bytes = merged->merge(view, &view.type);
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/adapter/adapter_file.h"
#include "model/adapter/adapter_targets.h"

namespace quire {

class MergedAdapter {
 public:
  static Result<std::shared_ptr<const MergedAdapter>> read(const std::string& path,
                                                           const ModelConfig& config,
                                                           bool base_is_gguf);

  bool changes(std::string_view tensor) const { return changes_.contains(tensor); }
  static DType type_of(DType base);  // that a changed tensor of this type has
  // The bytes of a tensor that changes, in the order of rows of the model's file.
  std::vector<std::byte> merge(const TensorView& base) const;
  const std::array<std::byte, 32>& digest() const { return file_.digest; }

 private:
  struct Change {
    const AdapterPair* pair;
    AdapterPlace place;
    HeadRows base_rows;  // the order of rows in the model's file
  };
  AdapterFile file_;
  ModelConfig config_;
  std::map<std::string, Change, std::less<>> changes_;  // by tensor
};

}  // namespace quire
