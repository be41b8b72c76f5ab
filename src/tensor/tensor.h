// tensor/tensor.h - a named, typed view of bytes in a mapped weight file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"

namespace quire {

// Shapes are outermost first: a linear layer is [outputs, inputs] and its rows are contiguous.
struct TensorView {
  std::string name;
  DType type = DType::f32;
  std::vector<std::uint64_t> shape;
  std::span<const std::byte> data;

  std::uint64_t columns() const { return shape.empty() ? 1 : shape.back(); }
  std::uint64_t rows() const {
    std::uint64_t n = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
  const std::byte* row(std::uint64_t r) const {
    return data.data() + r * row_bytes(type, columns());
  }
};

}  // namespace quire
