// base/byte_size.h - sizes as people write them: "8GiB", "512M", "1000". K/M/G are powers of 1,000,
// KiB/MiB/GiB of 1,024.
//
//   TRY(const std::uint64_t bytes, parse_size("100GiB"));
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace quire {

Result<std::uint64_t> parse_size(const std::string& text);

}  // namespace quire
