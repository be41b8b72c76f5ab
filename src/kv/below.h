// kv/below.h - what the cache knows of the places below memory: it offers them blocks.
//
// A block is offered when it is sealed, when it is hit, and when it leaves memory, until the offer
// is taken. Who takes it copies the bytes at once: nothing in the cache waits. Tiers are behind it
// (kv/tier/tier_link.h); the cache knows none of them. How blocks come back: kv/landing.h.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "kv/cache_layout.h"
#include "kv/key.h"
#include "kv/token.h"

namespace quire {

enum class Offer : std::uint8_t {
  sealed,   // it has just become part of the cache
  hit,      // a prompt was served with it
  leaving,  // its memory is about to be used for something else
  asked,    // somebody wants it there, whatever else is kept
};

struct OfferedBlock {
  const BlockKey& key;
  const CacheLayout& layout;
  std::uint32_t group;
  std::span<const TokenId> tokens;
  std::span<const std::byte> bytes;  // until offer() returns
  std::string_view tenant;
  std::uint32_t hits;
  Nanoseconds recompute_ns;
};

class Below {
 public:
  virtual ~Below() = default;
  // True: it will be kept, and need not be offered again. Engine thread only.
  virtual bool offer(Offer why, const OfferedBlock& block) = 0;
};

}  // namespace quire
