// model/made_tensors.h - rows of one tensor out of another one that a file has instead.
//
// Rows that lie together are a view of the file. Rows that must be gathered or turned are copied, and
// the copy is given back as soon as somebody has packed it. Used by ModelSource.
//
//   MadeTensors made;
//   TRY(TensorView k, made.piece(qkv, "blk.0.attn_k.weight", {rows, columns}, spec, piece, config));
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/arch/arch.h"
#include "tensor/tensor.h"

namespace quire {

class MadeTensors {
 public:
  // `whole` has been found in the file `file`; `shape` is what its piece must have. Threads may call.
  Result<TensorView> piece(const TensorView& whole, const std::string& file, std::string_view name,
                           const std::vector<std::uint64_t>& shape, const TensorPiece& piece,
                           const ModelConfig& config, NamedTensor named);
  // Frees the copy that this is a view of; false: it is none.
  bool drop(const TensorView& tensor);

 private:
  using Bytes = std::vector<std::byte>;
  std::mutex mutex_;
  std::map<std::string, Bytes, std::less<>> copies_;
};

}  // namespace quire
