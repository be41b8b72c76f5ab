// engine/lane_rows.h - the keys and values that one lane of a sequence holds, as floats, and which
// tokens they are of.
//
// A lane (model layer, KV head) first has the tokens that a compaction left, then the blocks since,
// sealed or open. Slots are numbered in this order, which is the order of their tokens.
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

// The rows of the sequence's first `end` tokens, without the blocks that end before `begin`:
// LaneRows::tokens says where the rows begin. The tokens that a compaction left count as one block.
// Only reads memory: several threads may call it at once.
struct LaneRange {
  std::uint32_t begin = 0, end = 0xffffffffu;
};
LaneRows lane_rows(const Runtime& runtime, const Sequence& s, std::uint32_t layer,
                   std::uint32_t head, const LaneParts& parts, LaneRange range = {});

// Only LaneRows::tokens.
std::vector<std::uint32_t> lane_tokens(const Runtime& runtime, const Sequence& s,
                                       std::uint32_t layer, std::uint32_t head,
                                       LaneRange range = {});

// How many there are.
std::uint32_t lane_slots(const Runtime& runtime, const Sequence& s, std::uint32_t layer,
                         std::uint32_t head);

// Replaces the rows of the lane's own pages by as many others. No other sequence may read these
// pages (KvCache::own_lane). A lossy format rounds the rows once more.
void write_lane(Runtime& runtime, Sequence& s, std::uint32_t layer, std::uint32_t head,
                const std::vector<float>& keys, const std::vector<float>& values);

}  // namespace quire
