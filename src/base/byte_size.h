// base/byte_size.h - sizes as people write them: "512MiB", "8GiB", "2e9".
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace quire {

Result<std::uint64_t> parse_size(const std::string& text);

}  // namespace quire
