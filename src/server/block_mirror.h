// server/block_mirror.h - the cached blocks as subscribers of KV events know them.
//
// The publisher (server/kv_publisher.h) tells it which blocks are there now; it answers with the events
// that lead from what subscribers know to that. So events that were missed, repeated or that undo each
// other do no harm. It also makes the snapshot that a replay begins with. It takes some 200 bytes per
// block.
//
//   BlockMirror mirror({.tokens_per_block = 32});
//   Json events = mirror.apply({{.hash = h, .there = true, .block = {...}}});   // [{"type": "BlockStored", ...}]
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/token.h"

namespace quire {

// How an event is written: as a map (vLLM since 2026), or as an array that begins with its type.
enum class EventForm : std::uint8_t { map, array };

struct MirroredBlock {
  std::uint64_t parent = 0;  // 0: none
  std::vector<TokenId> tokens = {};
  std::string tenant = {}, salt = {}, adapter = {};
};

struct MirrorChange {
  std::uint64_t hash = 0;
  bool there = false;
  MirroredBlock block = {};  // of one that is there
};

class BlockMirror {
 public:
  struct Options {
    std::uint32_t tokens_per_block = 32;
    EventForm form = EventForm::map;
  };
  explicit BlockMirror(const Options& options) : options_(options) {}

  // These blocks are there, or are not. Events: what left, then what came, each after its parent where
  // the changes are in that order.
  Json apply(std::vector<MirrorChange> changes);
  // The blocks are these and no others.
  Json replace(std::vector<MirrorChange> all);
  // AllBlocksCleared, then every block after its parent.
  Json snapshot() const;

  std::size_t size() const { return blocks_.size(); }

 private:
  class Writer;
  Options options_;
  std::unordered_map<std::uint64_t, MirroredBlock> blocks_;
};

// One message: [time, events].
std::string event_payload(double seconds, const Json& events);

}  // namespace quire
