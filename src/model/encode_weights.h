// model/encode_weights.h - floats as weights of a type, by plain rounding. Used by tiny models, and by
// adapters that become part of a model.
//
//   const std::vector<std::byte> row = encode_weights(DType::q8_0, values);
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tensor/dtype.h"

namespace quire {

// `values` is a whole number of the type's blocks; the type is f32, f16, bf16, q8_0 or q4_1.
std::vector<std::byte> encode_weights(DType type, std::span<const float> values);

}  // namespace quire
