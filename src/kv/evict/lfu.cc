// lfu - the least often used leaves first; among equals the least recently used.
#include <algorithm>

#include "kv/evict/ranked.h"

namespace quire {
namespace {

// Counts up to 63 are told apart, larger ones by eighths of an octave.
constexpr std::uint32_t kExact = 64, kRanks = kExact + 26 * 8;

std::uint32_t rank_by_hits(const EvictEntry& e) {
  if (e.hits < kExact) return e.hits;
  const auto octave = static_cast<std::uint32_t>(std::bit_width(e.hits)) - 1;  // 6..31
  return kExact + (octave - 6) * 8 + ((e.hits >> (octave - 3)) & 7);
}

}  // namespace

extern const EvictPolicy kEvictLfu;
const EvictPolicy kEvictLfu = {"lfu", "least often used first",
                               [](const EvictOptions& o) -> std::unique_ptr<Evictor> {
                                 return std::make_unique<Ranked<kRanks, rank_by_hits>>(o);
                               }};

}  // namespace quire
