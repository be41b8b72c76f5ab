// replay/block_replay.h - requests as chains of opaque blocks, one after another, through an
// evictor. No time, no model, no scheduler: what an evictor alone is worth on a trace.
//
// A request hits the longest prefix of its blocks that are present. Then all its blocks are touched
// from the last to the first, so that its first block is the most recent. Then blocks leave until
// the capacity holds, children before parents. A block is its id after the ids before it.
//
//   TRY(const EvictPolicy* policy, find_replay_evict_policy("lru"));
//   BlockReplay r = replay_blocks(requests, *policy, 10000);
//   double share = r.hit_share();
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/evict/evict.h"

namespace quire {

struct BlockChain {
  std::vector<std::uint64_t> ids;
};

struct BlockReplay {
  std::uint64_t blocks = 0, hit_blocks = 0, unique_blocks = 0, evicted_blocks = 0;
  double hit_share() const {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  }
};

// Capacity 0: nothing ever leaves.
BlockReplay replay_blocks(std::span<const BlockChain> requests, const EvictPolicy& policy,
                          std::uint64_t capacity);

}  // namespace quire
