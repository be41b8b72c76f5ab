// sim/page_numbers.h - the numbers that a lane page holds, as a reader decodes them, and a digest of
// each of its slots. The toy executor reads every page through this.
//
//   PageNumbers pages;
//   const DecodedPage& p = pages.read(geometry, group, bytes);
//   p.digests[slot];                     // of the slot's key and value
//
// Decoding is slow, so pages that were seen before are found by their bytes. The bytes are read every
// time: a page that changed is another page.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/geometry.h"

namespace quire {

struct DecodedPage {
  std::vector<float> keys;             // [P][key_dim], in the codec's basis
  std::vector<std::uint64_t> digests;  // by slot
};

class PageNumbers {
 public:
  // Valid until the next call.
  const DecodedPage& read(const Geometry& geometry, const LayerGroup& group, const std::byte* page);

 private:
  std::unordered_map<std::uint64_t, DecodedPage> seen_;
  std::vector<float> values_;
};

}  // namespace quire
