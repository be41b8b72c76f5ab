// sim/page_numbers.h - the numbers that a lane page holds, as a reader decodes them, and a digest of
// each of its slots. The toy executor reads every page through this.
//
//   PageNumbers pages;
//   std::span<const std::uint64_t> digests = pages.digests(geometry, group, page);
//   digests[slot];                       // of the slot's key and value
//
// The bytes are read every time: a page that changed is another page. Decoding is slow, so digests are
// remembered by the page's bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/geometry.h"

namespace quire {

class PageNumbers {
 public:
  // By slot. Valid until the next call.
  std::span<const std::uint64_t> digests(const Geometry& geometry, const LayerGroup& group,
                                         const std::byte* page);
  // [P][key_dim], in the codec's basis. Valid until the next call.
  std::span<const float> keys(const Geometry& geometry, const LayerGroup& group,
                              const std::byte* page);

 private:
  void add_raw(Side side, Rows rows, const std::byte* page);
  void add(const Codec& codec, Side side, Rows rows, const std::byte* page);

  struct Seen {
    std::uint64_t name = 0;  // of its bytes and format
    std::vector<std::uint64_t> digests;
  };
  std::vector<Seen> seen_ = std::vector<Seen>(8192);  // by name; the last one stays
  std::vector<std::uint64_t> sums_;
  std::vector<float> numbers_;
  std::vector<std::uint16_t> bits_;
};

}  // namespace quire
