// kv/retain/merge.h - mergers: fold the tokens that leave a lane into those that stay.
//
// A merger runs between choosing and compacting, on one lane's rows as floats: it reads the rows of
// tokens that leave and changes rows of tokens that stay. Any merger may be combined with any
// retention method. A merged lane is private to its sequence, as after eviction.
//
//   TRY(const Merger* merger, find_merger("value"));
//   merger->merge({.slots = n, .key_dim = d, .value_dim = d, .keep = keep.lane(i)}, state, keys,
//                 values);
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/retain/retain.h"

namespace quire {

// A slot that leaves, the kept slot whose key is most like its own, and how like (their cosine).
struct NearestKept {
  std::uint32_t slot = 0, target = 0;
  float similarity = -2;
};

struct MergeInput {
  std::uint32_t slots = 0, key_dim = 0, value_dim = 0;
  std::span<const std::uint32_t> keep = {};  // ascending
  std::span<const float> mass = {};          // [slots], attention received so far
  std::uint64_t seed = 0;                    // draws are keyed by (seed, lane, first_token + slot)
  std::uint32_t lane = 0, first_token = 0;
  std::span<const NearestKept> nearest = {};  // of all slots that leave; empty: not known yet
};

std::vector<std::uint32_t> leaving_slots(const MergeInput& in);
// Of these slots that leave. Takes as many steps as there are pairs of a slot and a kept slot, so
// long lanes are searched in parts.
void find_nearest_kept(const MergeInput& in, std::span<const float> keys,
                       std::span<const std::uint32_t> slots, std::span<NearestKept> out);

// Carried from one compaction of a lane to the next.
struct MergeState {
  bool started = false;
  float threshold = 0;  // D2O: similarity below which a key is dropped, not merged
};

struct Merger {
  std::string_view name, source, summary;
  Signal needs;     // beside keys and values
  bool moves_keys;  // keys of kept slots change too
  bool by_nearest;  // looks at MergeInput::nearest
  void (*merge)(const MergeInput&, MergeState&, std::span<float> keys, std::span<float> values);
};

std::span<const Merger* const> mergers();
Result<const Merger*> find_merger(std::string_view name);

}  // namespace quire
