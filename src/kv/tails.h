// kv/tails.h - cached texts by any few tokens in a row: where a text went on that ended like this one.
// PrefixStore fills it when it can serve a block; KvCache::continue_text asks.
//
// One place for each digest, the newest; places are never removed. So whoever asks compares tokens
// and realm. Takes 1 MiB from when it is first wanted. Engine thread only.
//
//   tails.put(digest, {node, 12});               // the run ends with token 12 of the node
//   if (auto place = tails.at(digest)) ...
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kv/index.h"

namespace quire {

class TextTails {
 public:
  static constexpr std::uint32_t kRun = 6;  // tokens
  struct Place {
    NodeId node = kNoNode;
    std::uint32_t token = 0;
  };

  void put(std::uint64_t digest, Place place) { places_[digest % kPlaces] = place; }
  std::optional<Place> at(std::uint64_t digest) const {
    const Place place = places_[digest % kPlaces];
    return place.node == kNoNode ? std::nullopt : std::optional(place);
  }

 private:
  static constexpr std::size_t kPlaces = std::size_t{1} << 17;
  std::vector<Place> places_ = std::vector<Place>(kPlaces);
};

}  // namespace quire
