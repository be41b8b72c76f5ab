// model/coded_tensor.h - a matrix that a Hugging Face folder keeps as codes, scales and zeros in
// tensors of their own, as rows of one of Quire's weight types (tensor/dtype.h).
//
// Rows are encoded where they are wanted, a few at a time: the whole model is never in memory twice.
// Used by ModelSource.
//
//   TRY(const auto coded, find_coded(look, how, "model.layers.0.mlp.up_proj.weight"));
//   if (coded) coded->encode(0, coded->rows, bytes);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/quantization.h"
#include "tensor/dtype.h"
#include "tensor/safetensors.h"

namespace quire {

struct CodedTensor {
  DType type;
  std::uint64_t rows, columns;
  // Writes rows [first, first + count) one after the other.
  std::function<void(std::uint64_t first, std::uint64_t count, std::byte* to)> encode;
  std::vector<std::span<const std::byte>> parts;  // what encode reads
};

// A tensor of the folder by its name; nothing: there is none. What `owner` holds lives as long as the
// coded tensor.
struct FoundTensor {
  RawTensor tensor;
  std::shared_ptr<const void> owner = nullptr;
};
using TensorLookup = std::function<Result<std::optional<FoundTensor>>(const std::string& name)>;

// Nothing: the folder does not keep `name` as codes. An error: it does, and they make no sense.
Result<std::optional<CodedTensor>> find_coded(const TensorLookup& look, const Quantization& how,
                                              const std::string& name);

}  // namespace quire
