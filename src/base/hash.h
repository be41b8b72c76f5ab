// base/hash.h - XXH3 for tables, checksums and comparisons; SHA-256 for identities is in kv/key.h.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace quire {

inline std::uint64_t hash64(const void* data, std::size_t bytes) {
  return XXH3_64bits(data, bytes);
}

}  // namespace quire
