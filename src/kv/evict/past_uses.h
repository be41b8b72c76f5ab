// kv/evict/past_uses.h - how often blocks were used that have left, and when they were used last.
//
// Fixed memory: a slot holds a mark of the key (one in 8,000 strangers is taken for known), the
// number of uses and the time. Eight slots make a cache line; the oldest of them makes way.
//
//   past.add(key, {hits, end}, last_use);
//   if (std::optional<PastUses::Block> b = past.take(key)) hits = b->past.hits + 1;
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/random.h"
#include "kv/evict/evict.h"
#include "kv/lazy_array.h"

namespace quire {

class PastUses {
 public:
  struct Block {
    BlockPast past;
    Nanoseconds last_use;
  };

  explicit PastUses(std::uint32_t entries)
      : buckets_(std::bit_ceil(std::clamp(entries, kLeast, kMost) / kWays)) {}

  void add(std::uint64_t key, BlockPast past, Nanoseconds last_use) {
    Bucket& b = bucket(key);
    std::uint32_t oldest = 0;
    for (std::uint32_t i = 1; i < kWays; ++i)
      if (time_of(b.slot[i]) < time_of(b.slot[oldest])) oldest = i;
    const auto tick = static_cast<std::uint64_t>(std::max<Nanoseconds>(last_use, 0)) >> kTickShift;
    b.slot[oldest] = std::min(tick + 1, kTickMax) << 24 | std::uint64_t{past.end} << 23 |
                     std::uint64_t{std::min(past.hits, 127u)} << 16 | mark(key);
  }
  std::optional<Block> take(std::uint64_t key) {
    Bucket& b = bucket(key);
    for (std::uint64_t& slot : b.slot) {
      if (slot == 0 || (slot & 0xffff) != mark(key)) continue;
      const Block found{{static_cast<std::uint32_t>(slot >> 16 & 0x7f), (slot >> 23 & 1) != 0},
                        static_cast<Nanoseconds>((time_of(slot) - 1) << kTickShift)};
      slot = 0;
      return found;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::uint32_t kWays = 8, kLeast = 1u << 18, kMost = 1u << 21;
  static constexpr int kTickShift = 20;
  static constexpr std::uint64_t kTickMax = (std::uint64_t{1} << 40) - 1;
  struct alignas(64) Bucket {
    std::uint64_t slot[kWays];  // time in ticks plus one, end, hits, mark; 0: empty
  };
  Bucket& bucket(std::uint64_t key) { return buckets_[mix64(key) & (buckets_.size() - 1)]; }
  static std::uint64_t mark(std::uint64_t key) { return mix64(key) >> 48 | 1; }
  static std::uint64_t time_of(std::uint64_t slot) { return slot >> 24; }

  LazyArray<Bucket> buckets_;
};

}  // namespace quire
