// kernels/fetch.h - memory that is read next, fetched into the second cache while something else is
// computed.
//
// Products of many rows are bound by arithmetic and leave memory idle, and the attention after them
// waits for it. So a product fetches, beside its own weights, pages of the next layer: each thread
// every n-th of a list of blocks, as many bytes with a panel of weights as the panel has.
//
//   Fetch fetch{.blocks = blocks, .at = lane, .stride = lanes, .offset = 0, .bytes = page_bytes};
//   std::span<const std::byte> lines = fetch.next(5760);  // empty when all have been fetched
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace quire {

struct Fetch {
  std::span<const std::byte* const> blocks;
  std::size_t at = 0, stride = 1;     // the block at hand, and how far the next one is
  std::size_t offset = 0, bytes = 0;  // the part of a block that is wanted
  std::size_t done = 0;               // of the block at hand

  // The next `count` bytes of a block, or what is left of it.
  std::span<const std::byte> next(std::size_t count) {
    if (at >= blocks.size()) return {};
    const std::span part(blocks[at] + offset + done, std::min(count, bytes - done));
    done += part.size();
    if (done == bytes) {
      at += stride;
      done = 0;
    }
    return part;
  }
};

}  // namespace quire
