// kv/evict/ghost.h - what was evicted, when and why; and what a larger cache would have kept.
//
// Remembers the last `entries_max` evicted blocks by the first 64 bits of their keys, in fixed
// memory. After a miss it tells "never seen" from "evicted 12 s ago for lack of room", and how many
// bytes were evicted for lack of room since then: a cache larger by that much would still have the
// block. So counters say what a cache of 2, 4 and 8 times the memory would have hit.
//
//   ghosts.add(key.prefix(), bytes, Reason::evicted_capacity, now);
//   if (std::optional<Ghost> g = ghosts.miss(key.prefix(), tokens, cache_bytes))
//     explain(g->reason, now - g->when);
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "kv/lazy_array.h"
#include "kv/reason.h"

namespace quire {

struct Ghost {
  std::uint64_t key, bytes;
  Nanoseconds when;
  std::uint64_t
      distance;  // bytes that left for lack of room since, itself included, and are still away
  Reason reason;
};

struct GhostStats {
  std::uint64_t lookups = 0, found = 0;  // weights given to miss()
  // Of these, what a cache of 2, 4 and 8 times the size would have served.
  std::uint64_t would_hit_2x = 0, would_hit_4x = 0, would_hit_8x = 0;
  std::uint64_t evicted_bytes = 0, evicted_entries = 0;  // for lack of room only
  // found, by the bytes evicted since: [0] under 1 MiB, [1] under 2 MiB, [2] under 4 MiB ..
  std::uint64_t by_distance[40] = {};
};

class GhostTable {
 public:
  explicit GhostTable(std::uint32_t entries_max);

  void add(std::uint64_t key, std::uint64_t bytes, Reason reason, Nanoseconds now);
  std::optional<Ghost> find(std::uint64_t key) const;  // does not count
  // A lookup missed this block: counts it, worth `weight`, and forgets it, as it is about to be
  // computed again.
  std::optional<Ghost> miss(std::uint64_t key, std::uint64_t weight, std::uint64_t cache_bytes);
  void forget(std::uint64_t key);

  std::uint32_t size() const { return size_; }
  const GhostStats& stats() const { return stats_; }

 private:
  std::uint32_t find_slot(std::uint64_t key) const;  // its slot, or the empty one where it would go
  void erase_slot(std::uint32_t slot);
  void weigh(std::uint32_t place, std::uint64_t bytes);    // adds, modulo 2^64
  std::uint64_t weight_before(std::uint32_t place) const;  // of ring_[0..place)

  LazyArray<Ghost> ring_;           // in order of eviction
  LazyArray<std::uint64_t> sums_;   // a Fenwick tree over ring_: bytes that left for lack of room
  LazyArray<std::uint32_t> slots_;  // open addressing, linear probing: 1 + place in ring_, or 0
  std::uint32_t next_ = 0, size_ = 0, capacity_, mask_;
  std::uint64_t away_bytes_ = 0;  // of all that sums_ weighs
  GhostStats stats_;
};

}  // namespace quire
