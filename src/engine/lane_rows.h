// engine/lane_rows.h - the keys and values that one lane of a sequence holds, as floats, and which
// tokens they are of.
//
// A lane (model layer, KV head) first has what a compaction left it, then the blocks since, sealed
// or open. Slots count them in that order, which is that of their tokens.
//
//   LaneRows rows = lane_rows(runtime, sequence, layer, head, {.values = true});
//   rows.tokens[slot]; rows.keys[slot * dim + i];            // keys rotated to their positions
#pragma once

#include <cstdint>
#include <vector>

#include "engine/runtime.h"

namespace quire {

struct LaneRows {
  std::vector<std::uint32_t> tokens;  // by slot, ascending
  std::vector<float> keys, values;    // [slot][dim]
};

struct LaneParts {
  bool keys = true, values = false;
};

// Of the sequence's first `end` tokens, without the blocks that end before `begin`: LaneRows::tokens
// tells where the rows begin. What a compaction left counts as one. Reads memory only: several threads
// may do so at once.
struct LaneRange {
  std::uint32_t begin = 0, end = 0xffffffffu;
};
LaneRows lane_rows(const Runtime& runtime, const Sequence& s, std::uint32_t layer,
                   std::uint32_t head, const LaneParts& parts, LaneRange range = {});

// The tokens alone.
std::vector<std::uint32_t> lane_tokens(const Runtime& runtime, const Sequence& s,
                                       std::uint32_t layer, std::uint32_t head,
                                       LaneRange range = {});

// Puts rows in place of those of the lane's own pages, which hold as many and are nobody else's
// (KvCache::own_lane). A lossy format rounds them once more.
void write_lane(Runtime& runtime, Sequence& s, std::uint32_t layer, std::uint32_t head,
                const std::vector<float>& keys, const std::vector<float>& values);

}  // namespace quire
