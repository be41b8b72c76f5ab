// kernels/ref/row_type.h - element i of rows as a page stores them. For the references of kernels
// that read pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "format/format.h"

namespace quire::ref {

inline float read(RowType type, const std::byte* base, std::size_t i) {
  if (type == RowType::f32) {
    float value;
    std::memcpy(&value, base + 4 * i, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, base + 2 * i, 2);
  return type == RowType::f16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

}  // namespace quire::ref
