// kv/cache_layout.h - a Geometry as the cache needs it: the bytes of each group, and which blocks a
// sequence needs of it.
//
// Layouts are interned by their digest and live as long as a root has them (kv/roots.cc). Sequences
// and nodes point to them.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/geometry.h"
#include "kv/arena.h"
#include "kv/layout.h"

namespace quire {

inline constexpr std::uint32_t kGroupsMax = 8;

struct CacheLayout {
  struct Group {
    GroupKind kind;
    SizeClass size_class;
    std::uint64_t bytes;   // of a block
    std::uint32_t sinks;   // blocks at the start that never leave the window
    bool open_only;        // LayerGroup::open_only: never published
    SizeClass page_class;  // of a lane page; chain groups only
  };

  Geometry geometry;
  Digest digest;
  std::uint64_t serial = 0;  // KvCache::geometry_serial
  std::uint32_t group_count = 0;
  std::uint32_t roots = 0;  // that have it
  std::array<Group, kGroupsMax> groups{};
  // Bits by group. A chain group is needed from the first token on; a windowed one only for the
  // last tokens; a state only where it ends.
  std::uint32_t chain = 0, windowed = 0, state = 0;
  bool exact = true;  // every format stores rows unchanged: slots can be reused singly

  // The first and the end block of a sequence of `tokens` tokens, as in Geometry.
  std::uint32_t first_block(std::uint32_t g, std::uint32_t tokens) const {
    return static_cast<std::uint32_t>(geometry.first_block(geometry.groups[g], tokens));
  }
  // Whether a sequence of so many tokens, all in whole blocks, has a block that is published.
  bool wants(std::uint32_t g, std::uint32_t block, std::uint32_t tokens) const {
    if (groups[g].open_only || state >> g & 1) return false;
    return !(windowed >> g & 1) || block >= first_block(g, tokens) || block < groups[g].sinks;
  }
  std::uint32_t block_end(std::uint32_t g, std::uint32_t tokens) const {
    return static_cast<std::uint32_t>(geometry.block_end(geometry.groups[g], tokens));
  }
};

}  // namespace quire
