// model/made_tensors.h - rows of one tensor out of another one that a file has instead.
//
// Rows that lie together are a view of the file. Rows that must be gathered or turned are copied, and
// the copy is given back as soon as somebody has packed it. Used by ModelSource.
//
//   MadeTensors made;
//   TRY(TensorView k, made.make(true, [&](std::vector<std::byte>* copy) {
//     return take_piece(qkv, "m.gguf", "blk.0.attn_k.weight", {rows, columns}, piece, config, named, nullptr, copy);
//   }));
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/arch/arch.h"
#include "model/coded_tensor.h"
#include "tensor/tensor.h"

namespace quire {

// `whole` has been found in the file `file`; `shape` is what its piece must have. Rows that must be
// gathered go into `copy`, which the view is of then; null: the view has no bytes. `coded`: what has
// the rows of a whole without bytes; null: the whole has them.
Result<TensorView> take_piece(const TensorView& whole, const std::string& file,
                              std::string_view name, const std::vector<std::uint64_t>& shape,
                              const TensorPiece& piece, const ModelConfig& config,
                              NamedTensor named, const CodedTensor* coded,
                              std::vector<std::byte>* copy);

class MadeTensors {
 public:
  using Bytes = std::vector<std::byte>;

  // A view of a copy that is kept here, once `fill` has made it (if it is to have bytes, and the file
  // can still be read). A `fill` that leaves it empty has returned a view of the file. Threads may call.
  using Fill = std::function<Result<TensorView>(Bytes* copy)>;
  Result<TensorView> make(bool with_bytes, const Fill& fill);
  // Frees the copy if this is a view of all of it. True: it is a view of a copy.
  bool drop(const TensorView& tensor);
  // The file can no longer be read: what would be copied has no bytes from here on.
  void detach();

 private:
  std::mutex mutex_;
  bool detached_ = false;
  std::map<std::string, Bytes, std::less<>> copies_;
};

}  // namespace quire
