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

// `whole` has been found in the file `file`; `shape` is what its piece must have. Rows that must be
// gathered go into `copy`, which the view is of then; null: the view has no bytes.
Result<TensorView> take_piece(const TensorView& whole, const std::string& file,
                              std::string_view name, const std::vector<std::uint64_t>& shape,
                              const TensorPiece& piece, const ModelConfig& config,
                              NamedTensor named, std::vector<std::byte>* copy);

class MadeTensors {
 public:
  // The same, with a copy that is kept here. Threads may call.
  Result<TensorView> piece(const TensorView& whole, const std::string& file, std::string_view name,
                           const std::vector<std::uint64_t>& shape, const TensorPiece& piece,
                           const ModelConfig& config, NamedTensor named);
  // Keeps bytes that were made of a tensor; the view is of them then.
  TensorView keep(TensorView view, std::vector<std::byte> bytes);
  // Frees the copy that this is a view of, if it is of all of it; false: it is of none.
  bool drop(const TensorView& tensor);
  // The file can no longer be read: what would be copied has no bytes from here on.
  void detach();

 private:
  using Bytes = std::vector<std::byte>;
  std::mutex mutex_;
  bool detached_ = false;
  std::map<std::string, Bytes, std::less<>> copies_;
};

}  // namespace quire
