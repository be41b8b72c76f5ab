// kv/sequence_state.h - the state behind a Sequence. Only the files of the cache include it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kv/cache_layout.h"
#include "kv/pool.h"
#include "kv/prefix_store.h"
#include "kv/sequence.h"

namespace quire {

// What one lane kept of the tokens before a compaction. Pages are written once.
struct LaneRun {
  std::vector<BlockRef> pages;
  std::vector<ArenaOffset> offsets;
  std::vector<std::uint32_t> positions;  // by slot, ascending
};

// The blocks of one sequence in one layer group. A state group has a single entry: the state.
struct BlockTable {
  std::vector<BlockRef> refs;        // by block; empty where a window has passed
  std::vector<ArenaOffset> offsets;  // the same, as kernels read it
  std::uint32_t first = 0;           // blocks before it, sinks aside, have been let go
  std::vector<LaneRun> lanes;        // by lane, or none: instead of the blocks before `first`
  std::vector<KvLane> lane_views;    // the same, as kernels read it
  std::uint32_t lane_slots_max = 0;
  BlockRef saved;  // state group: what to go back to if the step is not committed

  std::uint32_t count() const { return static_cast<std::uint32_t>(refs.size()); }
  void push(BlockRef ref) {
    offsets.push_back(ref.empty() ? kNoBlock : ref.offset());
    refs.push_back(std::move(ref));
  }
  void replace(std::uint32_t i, BlockRef ref) {
    offsets[i] = ref.offset();
    refs[i] = std::move(ref);
  }
  void set_lanes(std::vector<LaneRun> runs) {
    lanes = std::move(runs);
    lane_views.clear();
    lane_slots_max = 0;
    for (const LaneRun& run : lanes) {
      const auto slots = static_cast<std::uint32_t>(run.positions.size());
      lane_views.push_back({run.offsets.data(), slots});
      lane_slots_max = std::max(lane_slots_max, slots);
    }
  }
  KvSequenceView view(std::uint32_t tokens_per_block, std::uint32_t first_row, std::uint32_t rows,
                      std::uint32_t past) const {
    KvSequenceView v{offsets.data(), first_row, rows, past};
    if (lanes.empty()) return v;
    v.lanes = lane_views.data();
    v.ragged_until = first * tokens_per_block;
    v.lane_slots_max = lane_slots_max;
    return v;
  }
  void cut(std::uint32_t blocks) {  // last first, so that the evictor sees leaves first
    while (refs.size() > blocks) {
      refs.pop_back();
      offsets.pop_back();
    }
    first = std::min(first, blocks);
  }
};

enum class Phase : std::uint8_t {
  closed,
  fresh,    // open, no tokens yet
  placed,   // tokens known, a cursor in the index, no blocks
  running,  // has blocks
  parked,   // has blocks, but may lose them when memory is short
};

struct SequenceState {
  CacheCore* core = nullptr;
  std::uint32_t slot = 0;
  std::uint32_t serial = 0;  // counts openings, so that steps in flight notice a closed sequence
  Phase phase = Phase::closed;
  SequenceOptions options;  // its `changes` are below
  const CacheLayout* layout = nullptr;
  BlockKey root_key;

  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
  std::vector<KeyChange> changes;
  std::vector<BlockChange> tags;
  std::array<BlockTable, kGroupsMax> tables;

  // Placed: where it stands. Running: path[i] is the node of block i, first those published, then
  // those it has announced to compute; the last one is anchored.
  Cursor cursor;

  std::uint32_t length = 0, prompt_length = 0, published = 0;
  std::uint32_t pure_until = UINT32_MAX;
  std::uint32_t computed =
      0;  // the longest it has been, rollbacks aside: known tokens up to here need no logits
  std::uint32_t reserved = 0;    // tokens of steps in flight
  std::uint32_t steps = 0;       // how many of them
  std::uint64_t moves_seen = 0;  // PrefixStore::moves() when offsets were last right
  bool faulted = false;
  SequenceState* parked_next = nullptr;  // in order of parking
  SequenceState* parked_previous = nullptr;

  std::uint32_t tokens_per_block() const { return layout->geometry.tokens_per_block; }
  // Attach serves at most this many tokens. The last token of a prompt is always computed, because
  // its logits are wanted. Impure tokens are computed too: published blocks hold other numbers.
  std::uint32_t serve_limit() const {
    return std::min(
        {std::max(std::max(prompt_length, 1u) - 1, computed), pure_until, options.serve_max});
  }
  TokenChain chain() const { return {keys, tokens, tags}; }
};

}  // namespace quire
