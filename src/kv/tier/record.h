// kv/tier/record.h - a sealed block as bytes, on its way to a file, a store or a peer and back.
//
// Pool bytes are record bytes: a head, then the segments. A segment is the part of the block that
// belongs to some neighbouring layers of one group, as it lies in the arena. Every segment has a
// checksum of its own, so a layer can be verified and used before the last one has arrived. A head
// that is not exactly right is an error, never a guess.
//
//   RecordHead head{.identity = {name, key, layout, tokens}, .segments = {{.group = 0, ...}}};
//   std::vector<std::byte> bytes(record_bytes(head));
//   encode_record(head, spans_of_the_arena, bytes);
//
//   TRY(const RecordView record, read_record(bytes));        // the head is enough
//   if (record.head.identity != wanted) ...                  // a miss
//   if (!record.read_segment(i, stored, reserved)) ...       // a miss; else the bytes are in place
//
// Where others can write, a Seal (kv/tier/seal.h) encrypts token list and segments; both calls
// then need it, and a record that is not sealed is refused.
//
// Layout, little-endian: magic "QKVR", version, head bytes, flags (1: sealed), tokens, segments,
// microseconds to recompute, zero, all u32; record bytes u64, zero u64; name (16), key (32), layout
// digest (32), salt (32); per segment: group u16, first layer u16, layers u16, zero u16, bytes u64.
// Here the clear head ends. Tokens u32 each; zeros up to a multiple of 16; a check (16) of the
// tokens and one per segment; zeros up to a multiple of 64, less the last 16, which are the
// checksum of everything before them. Then the segments without gaps. A check is the XXH3-128 of
// the plain bytes, which finds accidents, or the tag of AES-256-GCM.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/token.h"
#include "kv/key.h"
#include "kv/tier/seal.h"

namespace quire {

// What a record is stored under: the first half of stored_key() (kv/key.h).
struct RecordName {
  std::array<std::uint8_t, 16> bytes{};

  static RecordName of(const BlockKey& stored);
  auto operator<=>(const RecordName&) const = default;
  std::uint64_t prefix() const {  // for hash tables: a name is uniform
    std::uint64_t p;
    std::memcpy(&p, bytes.data(), sizeof p);
    return p;
  }
  std::string hex() const;
};

// What a block must be to serve a request. Everything is compared.
struct RecordIdentity {
  RecordName name;
  BlockKey key;
  Digest layout{};  // kv/layout.h
  std::vector<TokenId> tokens = {};

  bool operator==(const RecordIdentity&) const = default;
};

struct RecordSegment {
  std::uint16_t group = 0, first_layer = 0, layers = 0;  // layers count within the group
  std::uint64_t bytes = 0;

  bool operator==(const RecordSegment&) const = default;
};

struct RecordHead {
  RecordIdentity identity;
  std::vector<RecordSegment> segments = {};
  std::uint32_t recompute_us = 0;  // what the block cost to compute: its value

  bool operator==(const RecordHead&) const = default;
};

struct RecordView {
  RecordHead head;
  std::size_t head_bytes = 0;  // the first segment follows
  std::uint64_t record_bytes = 0;
  std::vector<std::uint64_t> segment_at = {};  // of each segment, from the record's first byte
  std::span<const std::byte> clear_head = {}, checks = {};  // into the bytes that were read
  std::optional<RecordCipher> cipher = {};                  // of a sealed record

  // Verifies what was stored of a segment, and copies it to `to`, which has its size. False if it
  // is not what was written; `to` then holds nothing of use.
  [[nodiscard]] bool read_segment(std::uint32_t segment, std::span<const std::byte> stored,
                                  std::span<std::byte> to) const;
  // Verifies without copying. Sealed records can only be read.
  [[nodiscard]] bool segment_ok(std::uint32_t segment, std::span<const std::byte> stored) const;
};

inline constexpr std::uint32_t kRecordVersion = 2;
inline constexpr std::uint32_t kRecordSegmentsMax = 4096, kRecordTokensMax = 4096;
inline constexpr std::uint64_t kRecordSegmentMax = std::uint64_t{1} << 32;
inline constexpr std::size_t kRecordFixedBytes = 160;  // enough for record_claim()
inline constexpr std::size_t kRecordHeadMax = 256 << 10;

std::size_t record_head_bytes(const RecordHead& head);
std::uint64_t record_bytes(const RecordHead& head);  // head and segments

// `segments` has the sizes that the head states; `out` has record_bytes(head).
void encode_record(const RecordHead& head, std::span<const std::span<const std::byte>> segments,
                   std::span<std::byte> out, const Seal* seal = nullptr);

// Reads the head; segments need not be there. The view points into `bytes`.
Result<RecordView> read_record(std::span<const std::byte> bytes, const Seal* seal = nullptr);

// How many bytes the head that begins here claims to have; 0 if no head begins here. At most
// kRecordHeadMax. Needs kRecordFixedBytes.
std::size_t record_claim(std::span<const std::byte> bytes);

// A record can be erased in place: mark_erased() changes its first four bytes (false: no record
// begins here), and read_record() then answers `not_found`. read_erased() still reads lengths and checks of such a record; the
// tokens of a sealed one stay sealed.
bool mark_erased(std::span<std::byte> record);
Result<RecordView> read_erased(std::span<const std::byte> bytes);

}  // namespace quire
