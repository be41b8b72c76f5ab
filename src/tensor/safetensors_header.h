// tensor/safetensors_header.h - the JSON heads of safetensors files, read event by event so that
// hostile text costs no more memory than what it names. Used by tensor/safetensors.cc alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace quire {

struct TensorClaim {  // what a header says, unchecked
  std::string name, type;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

Result<std::vector<TensorClaim>> read_safetensors_header(std::string_view json);

}  // namespace quire
