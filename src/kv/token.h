// kv/token.h - the small names that everything in kv/ shares.
#pragma once

#include <cstdint>

#include "base/token.h"

namespace quire {

// A tree of the prefix index: one identity, one geometry. Its place, and how often that was given to
// another root before: an id that outlived its root names nothing.
enum class RootId : std::uint64_t {};

// A block whose key has changes (kv/key.h): `tag` is a digest of them. Blocks without one have tag
// 0.
struct BlockChange {
  std::uint32_t block;
  std::uint64_t tag;
};

}  // namespace quire
