// model/file_digest.h - SHA-256 over whole files, read in pieces. Used for the identity of a
// model's weights.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"

namespace quire {

// Of one file: the digest that sha256sum prints. Of several: the digest of their digests, in this
// order.
Result<std::array<std::byte, 32>> digest_of_files(std::span<const std::string> paths);

// The same of bytes in memory.
using ByteParts = std::span<const std::span<const std::byte>>;
std::array<std::byte, 32> digest_of(ByteParts parts);

}  // namespace quire
