#include "kv/tier/record.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/hex.h"

namespace quire {
namespace {

constexpr std::uint32_t kRecordMagic = 0x52564b51;  // "QKVR"
constexpr std::uint32_t kErasedMagic = 0x45564b51;  // "QKVE"
constexpr std::uint32_t kSealedFlag = 1;
constexpr std::size_t kCheckBytes = 16;

struct FixedHead {
  std::uint32_t magic, version, head_bytes, flags, tokens, segments, recompute_us, zero;
  std::uint64_t record_bytes, zero2;
  RecordName name;
  Digest key, layout;
  RecordSalt salt;
};
static_assert(sizeof(FixedHead) == kRecordFixedBytes);

struct SegmentEntry {
  std::uint16_t group, first_layer, layers, zero;
  std::uint64_t bytes;
};
static_assert(sizeof(SegmentEntry) == 16);

// Where the parts of a head begin.
struct HeadPlaces {
  std::size_t tokens, checks, checks_end, end;

  HeadPlaces(std::size_t token_count, std::size_t segment_count) {
    const auto up = [](std::size_t n, std::size_t to) { return (n + to - 1) / to * to; };
    tokens = sizeof(FixedHead) + segment_count * sizeof(SegmentEntry);
    checks = up(tokens + token_count * sizeof(TokenId), kCheckBytes);
    checks_end = checks + (segment_count + 1) * kCheckBytes;
    end = up(checks_end + kCheckBytes, 64);
  }
};
static_assert(sizeof(FixedHead) + kRecordSegmentsMax * (sizeof(SegmentEntry) + kCheckBytes) +
                  kRecordTokensMax * sizeof(TokenId) + 256 <=
              kRecordHeadMax);

void put_checksum(std::span<const std::byte> of, std::byte* to) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(of.data(), of.size()));
  std::memcpy(to, canonical.digest, kCheckBytes);
}

bool checksum_is(std::span<const std::byte> of, const std::byte* expected) {
  std::byte found[kCheckBytes];
  put_checksum(of, found);
  return std::memcmp(found, expected, kCheckBytes) == 0;
}

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
}

SealTag tag_at(std::span<const std::byte> checks, std::size_t number) {
  SealTag tag;
  std::memcpy(tag.data(), checks.data() + number * kCheckBytes, kCheckBytes);
  return tag;
}

Error bad_record(std::string what) {
  return {Code::corrupt, "block record: " + std::move(what) + "; it counts as a miss"};
}

Status check_fixed(const FixedHead& fixed, std::size_t available) {
  if (fixed.magic == kErasedMagic) return Error{Code::not_found, "block record: it was erased"};
  if (fixed.magic != kRecordMagic) return bad_record("does not begin with QKVR");
  if (fixed.version != kRecordVersion)
    return Error{Code::unsupported, fmt::format("block record: version {}, this program reads {}; "
                                                "it counts as a miss",
                                                fixed.version, kRecordVersion)};
  if (fixed.segments > kRecordSegmentsMax || fixed.tokens > kRecordTokensMax)
    return bad_record(
        fmt::format("claims {} segments and {} tokens", fixed.segments, fixed.tokens));
  const std::size_t expected = HeadPlaces(fixed.tokens, fixed.segments).end;
  if (fixed.head_bytes != expected)
    return bad_record(fmt::format("a head of {} bytes, {} expected", fixed.head_bytes, expected));
  if (available < expected)
    return bad_record(fmt::format("{} bytes of a head of {}", available, expected));
  if (fixed.zero != 0 || fixed.zero2 != 0 || fixed.flags > kSealedFlag)
    return bad_record("what should be zero is not");
  return {};
}

// The segment table into the view; its sum must be what the head states.
Status read_segments(std::span<const std::byte> bytes, const FixedHead& fixed, RecordView& view) {
  view.head.segments.reserve(fixed.segments);
  view.segment_at.reserve(fixed.segments);
  std::uint64_t at = fixed.head_bytes;
  for (std::uint32_t i = 0; i < fixed.segments; ++i) {
    SegmentEntry entry;
    std::memcpy(&entry, bytes.data() + sizeof fixed + i * sizeof entry, sizeof entry);
    if (entry.zero != 0 || entry.bytes > kRecordSegmentMax)
      return bad_record(fmt::format("segment {} claims {} bytes", i, entry.bytes));
    view.segment_at.push_back(at);
    view.head.segments.push_back({entry.group, entry.first_layer, entry.layers, entry.bytes});
    at += entry.bytes;
  }
  if (at != fixed.record_bytes) return bad_record("segments and record differ in size");
  view.record_bytes = at;
  return {};
}

Status read_tokens(std::span<const std::byte> bytes, const FixedHead& fixed, RecordView& view) {
  const HeadPlaces places(fixed.tokens, fixed.segments);
  const auto stored = bytes.subspan(places.tokens, fixed.tokens * sizeof(TokenId));
  std::vector<TokenId>& tokens = view.head.identity.tokens;
  tokens.resize(fixed.tokens);
  const auto plain = std::as_writable_bytes(std::span(tokens));
  if (view.cipher) {
    if (!view.cipher->open(0, view.clear_head, stored, tag_at(view.checks, 0), plain))
      return bad_record("was sealed with another secret, for another tenant, or changed");
  } else {
    std::ranges::copy(stored, plain.begin());
    if (fixed.flags == 0 && !checksum_is(plain, view.checks.data()))
      return bad_record("the tokens' checksum does not fit");
  }
  return {};
}

}  // namespace

RecordName RecordName::of(const BlockKey& stored) {
  RecordName name;
  std::copy_n(stored.bytes.begin(), name.bytes.size(), name.bytes.begin());
  return name;
}

std::string RecordName::hex() const { return to_hex(bytes); }

std::size_t record_head_bytes(const RecordHead& head) {
  return HeadPlaces(head.identity.tokens.size(), head.segments.size()).end;
}

std::uint64_t record_bytes(const RecordHead& head) {
  std::uint64_t bytes = record_head_bytes(head);
  for (const RecordSegment& s : head.segments) bytes += s.bytes;
  return bytes;
}

void encode_record(const RecordHead& head, std::span<const std::span<const std::byte>> segments,
                   std::span<std::byte> out, const Seal* seal) {
  const std::vector<TokenId>& tokens = head.identity.tokens;
  CHECK(segments.size() == head.segments.size() && segments.size() <= kRecordSegmentsMax &&
        tokens.size() <= kRecordTokensMax && out.size() == record_bytes(head));
  const HeadPlaces places(tokens.size(), segments.size());
  std::fill_n(out.begin(), places.end, std::byte{});
  const FixedHead fixed{.magic = kRecordMagic,
                        .version = kRecordVersion,
                        .head_bytes = static_cast<std::uint32_t>(places.end),
                        .flags = seal ? kSealedFlag : 0,
                        .tokens = static_cast<std::uint32_t>(tokens.size()),
                        .segments = static_cast<std::uint32_t>(segments.size()),
                        .recompute_us = head.recompute_us,
                        .zero = 0,
                        .record_bytes = out.size(),
                        .zero2 = 0,
                        .name = head.identity.name,
                        .key = head.identity.key.bytes,
                        .layout = head.identity.layout,
                        .salt = seal ? Seal::random_salt() : RecordSalt{}};
  std::memcpy(out.data(), &fixed, sizeof fixed);
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const RecordSegment& s = head.segments[i];
    CHECK(s.bytes == segments[i].size() && s.bytes <= kRecordSegmentMax);
    const SegmentEntry entry{s.group, s.first_layer, s.layers, 0, s.bytes};
    std::memcpy(out.data() + sizeof fixed + i * sizeof entry, &entry, sizeof entry);
  }

  // Part 0 is the token list, part i + 1 segment i.
  const auto clear_head = out.first(places.tokens);
  const std::optional<RecordCipher> cipher =
      seal ? std::optional(seal->cipher(fixed.salt)) : std::nullopt;
  const auto put_part = [&](std::uint32_t number, std::span<const std::byte> from, std::size_t at) {
    std::byte* const check = out.data() + places.checks + number * kCheckBytes;
    const auto to = out.subspan(at, from.size());
    if (cipher) {
      SealTag tag;
      cipher->seal(number, clear_head, from, to, tag);
      std::memcpy(check, tag.data(), kCheckBytes);
    } else {
      std::ranges::copy(from, to.begin());
      put_checksum(to, check);  // of the copy: it is in the processor's cache
    }
  };
  put_part(0, std::as_bytes(std::span(tokens)), places.tokens);
  std::size_t at = places.end;
  for (std::uint32_t i = 0; i < segments.size(); at += segments[i++].size())
    put_part(i + 1, segments[i], at);
  put_checksum(out.first(places.end - kCheckBytes), out.data() + places.end - kCheckBytes);
}

Result<RecordView> read_record(std::span<const std::byte> bytes, const Seal* seal) {
  FixedHead fixed;
  if (bytes.size() < sizeof fixed)
    return bad_record(fmt::format("{} bytes are too few for a head", bytes.size()));
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  TRY_STATUS(check_fixed(fixed, bytes.size()));
  const HeadPlaces places(fixed.tokens, fixed.segments);
  if (!checksum_is(bytes.first(places.end - kCheckBytes), bytes.data() + places.end - kCheckBytes))
    return bad_record("the head's checksum does not fit");
  const std::size_t tokens_end = places.tokens + fixed.tokens * sizeof(TokenId);
  if (!all_zero(bytes.subspan(tokens_end, places.checks - tokens_end)) ||
      !all_zero(bytes.subspan(places.checks_end, places.end - kCheckBytes - places.checks_end)))
    return bad_record("what should be zero is not");
  if (seal && fixed.flags != kSealedFlag) return bad_record("is not sealed, as this place needs");
  if (!seal && fixed.flags == kSealedFlag) return bad_record("is sealed; this place has no key");
  if (!seal && fixed.salt != RecordSalt{}) return bad_record("what should be zero is not");

  RecordView view;
  view.head_bytes = places.end;
  view.clear_head = bytes.first(places.tokens);
  view.checks = bytes.subspan(places.checks, places.checks_end - places.checks);
  view.head.identity.name = fixed.name;
  view.head.identity.key.bytes = fixed.key;
  view.head.identity.layout = fixed.layout;
  view.head.recompute_us = fixed.recompute_us;
  if (seal) view.cipher.emplace(seal->cipher(fixed.salt));
  TRY_STATUS(read_segments(bytes, fixed, view));
  TRY_STATUS(read_tokens(bytes, fixed, view));
  return view;
}

bool RecordView::read_segment(std::uint32_t segment, std::span<const std::byte> stored,
                              std::span<std::byte> to) const {
  if (segment >= head.segments.size() || stored.size() != head.segments[segment].bytes ||
      to.size() != stored.size())
    return false;
  if (cipher) return cipher->open(segment + 1, clear_head, stored, tag_at(checks, segment + 1), to);
  if (!segment_ok(segment, stored)) return false;
  std::ranges::copy(stored, to.begin());
  return true;
}

bool RecordView::segment_ok(std::uint32_t segment, std::span<const std::byte> stored) const {
  return segment < head.segments.size() && stored.size() == head.segments[segment].bytes &&
         checksum_is(stored, checks.data() + (segment + 1) * kCheckBytes);
}

std::size_t record_claim(std::span<const std::byte> bytes) {
  FixedHead fixed;
  if (bytes.size() < sizeof fixed) return 0;
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.magic == kErasedMagic) fixed.magic = kRecordMagic;
  return check_fixed(fixed, kRecordHeadMax).ok() ? fixed.head_bytes : 0;
}

bool mark_erased(std::span<std::byte> record) {
  if (record.size() < sizeof kRecordMagic ||
      std::memcmp(record.data(), &kRecordMagic, sizeof kRecordMagic) != 0)
    return false;
  std::memcpy(record.data(), &kErasedMagic, sizeof kErasedMagic);
  return true;
}

Result<RecordView> read_erased(std::span<const std::byte> bytes) {
  const std::size_t head_bytes = record_claim(bytes);
  if (head_bytes == 0 || head_bytes > bytes.size()) return bad_record("no erased record");
  std::vector<std::byte> head(bytes.begin(),
                              bytes.begin() + static_cast<std::ptrdiff_t>(head_bytes));
  if (std::memcmp(head.data(), &kErasedMagic, sizeof kErasedMagic) != 0)
    return bad_record("is not erased");
  std::memcpy(head.data(), &kRecordMagic, sizeof kRecordMagic);
  TRY(RecordView view, read_record(head));
  view.clear_head = bytes.first(view.clear_head.size());
  view.checks =
      bytes.subspan(static_cast<std::size_t>(view.checks.data() - head.data()), view.checks.size());
  return view;
}

}  // namespace quire
