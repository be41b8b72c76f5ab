// kv/evict/ghost.h - what was evicted, when and why; and what a larger cache would have kept.
//
// Remembers the last `entries_max` evicted blocks by the first 64 bits of their keys, in fixed
// memory. When a lookup misses, asking here tells "never seen" from "evicted 12 s ago for lack of
// room", and how many bytes have been evicted since: a cache larger by that much would still have
// had it. So counters say what 2, 4 and 8 times the memory would have hit.
//
//   ghosts.add(key.prefix(), bytes, Reason::evicted_capacity, now);
//   if (std::optional<Ghost> g = ghosts.miss(key.prefix(), tokens, cache_bytes)) explain(g->reason,
//   now - g->when);
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "kv/reason.h"

namespace quire {

struct Ghost {
  std::uint64_t key, bytes;
  Nanoseconds when;
  Reason reason;
  std::uint64_t evicted_before;  // bytes evicted in all up to and without this one
};

struct GhostStats {
  std::uint64_t lookups = 0, found = 0;
  // Tokens (or blocks: what miss() was given) that a cache of 2, 4 and 8 times the size would have
  // served.
  std::uint64_t would_hit_2x = 0, would_hit_4x = 0, would_hit_8x = 0;
  std::uint64_t evicted_bytes = 0, evicted_entries = 0;
  std::uint64_t by_distance[40] =
      {};  // found, by log2 of the bytes evicted since, in MiB: [0] < 1 MiB, [1] < 2 ..
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
  void clear();  // entries, not counters

  std::uint32_t size() const { return size_; }
  const GhostStats& stats() const { return stats_; }

 private:
  static constexpr std::uint32_t kEmpty = UINT32_MAX;
  std::uint32_t slot_of(std::uint64_t key) const;
  void erase_slot(std::uint32_t slot);

  std::vector<Ghost> ring_;           // in order of eviction; a forgotten one has key 0 and bytes 0
  std::vector<std::uint32_t> slots_;  // open addressing, linear probing: index into ring_
  std::uint32_t next_ = 0, size_ = 0, mask_;
  GhostStats stats_;
};

}  // namespace quire
