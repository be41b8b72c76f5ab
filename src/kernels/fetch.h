// kernels/fetch.h - fetches memory that is read next into the second-level cache, while something
// else is computed.
//
// Products of many rows are bound by arithmetic and leave memory idle; the attention after them
// waits for memory. So a product fetches, beside its own weights, pages that the next layer's
// attention reads. Of a list of blocks each of n threads fetches every n-th. With a panel of
// weights it fetches as many bytes as the panel has.
//
//   Fetch fetch{.blocks = blocks, .count = n, .at = thread, .stride = threads, .bytes = page_bytes};
//   FetchPart part = next_part(fetch, 5760);  // empty when all have been fetched
//
// The instruction-set files include this header, so everything here is internal to its translation
// unit.
#pragma once

#include <cstddef>

namespace quire {

struct Fetch {
  const std::byte* const* blocks = nullptr;
  std::size_t count = 0;
  std::size_t at = 0, stride = 1;     // the current block, and how far away the next one is
  std::size_t offset = 0, bytes = 0;  // the part of a block that is wanted
  std::size_t done = 0;               // bytes of the current block
};

struct FetchPart {
  const std::byte *begin, *end;
};

// The next `bytes` bytes of a block, or what is left of it.
[[maybe_unused]] static FetchPart next_part(Fetch& fetch, std::size_t bytes) {
  if (fetch.at >= fetch.count) return {nullptr, nullptr};
  const std::byte* const block = fetch.blocks[fetch.at] + fetch.offset;
  const std::byte* const begin = block + fetch.done;
  if (bytes >= fetch.bytes - fetch.done) {
    fetch.at += fetch.stride;
    fetch.done = 0;
    return {begin, block + fetch.bytes};
  }
  fetch.done += bytes;
  return {begin, begin + bytes};
}

}  // namespace quire
