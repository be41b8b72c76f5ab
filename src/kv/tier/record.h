// kv/tier/record.h - a sealed block on its way out of memory: to a file, a store or a peer.
//
// Pool bytes are record bytes: a head, then the block's layers as they lie in the arena, one
// segment each. Every segment has a checksum of its own, so that a layer can be verified and used
// before the last one has arrived. A head that is not exactly right is an error, never a guess; its
// own checksum covers everything in it.
//
//   std::vector<std::byte> bytes = encode_record(head, block);
//   TRY(RecordView record, read_record(bytes));   // the head is enough; segments may come later
//   if (record.head.key != wanted || !record.segment_ok(i, segment)) ...   // counted as a miss
//
// Layout, little-endian: magic "QKVR", version u32, head bytes u32, group u32, first layer u32,
// layers u32, tokens u32, zero u32, segment bytes u64, key (32), layout digest (32), tokens u32
// each, padding to 16, a checksum (16) per layer, checksum (16) of all before it; segments.
// Checksums are XXH3-128, which finds accidents; where others can write, a keyed MAC goes on top.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "kv/key.h"

namespace quire {

struct RecordHead {
  BlockKey key;
  Digest layout{};  // kv/layout.h; not in the key, as a reader may permute
  std::uint32_t group = 0;
  std::uint32_t first_layer = 0, layers = 0;  // of the group: what a rank or a request needs
  std::uint64_t segment_bytes = 0;            // of one layer, all its lanes
  std::vector<std::uint32_t> tokens = {};     // a hit compares them too

  bool operator==(const RecordHead&) const = default;
};

struct RecordView {
  RecordHead head;
  std::size_t head_bytes = 0;                 // the first segment follows
  std::span<const std::byte> checksums = {};  // into the bytes that were read

  std::uint64_t record_bytes() const { return head_bytes + head.segment_bytes * head.layers; }
  std::uint64_t segment_at(std::uint32_t layer) const {
    return head_bytes + head.segment_bytes * layer;
  }
  bool segment_ok(std::uint32_t layer, std::span<const std::byte> segment) const;
};

inline constexpr std::uint32_t kRecordLayersMax = 4096, kRecordTokensMax = 4096;
inline constexpr std::uint64_t kRecordSegmentMax = std::uint64_t{1} << 32;

std::size_t record_head_bytes(const RecordHead& head);

// `block` holds at least layers * segment_bytes, beginning with first_layer's.
std::vector<std::byte> encode_record(const RecordHead& head, std::span<const std::byte> block);

// Reads the head; segments need not be there yet. The view points into `bytes`.
Result<RecordView> read_record(std::span<const std::byte> bytes);

}  // namespace quire
