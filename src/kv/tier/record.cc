#include "kv/tier/record.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

constexpr std::uint32_t kMagic = 0x52564b51;  // "QKVR"
constexpr std::uint32_t kRecordVersion = 1;
constexpr std::size_t kChecksumBytes = 16;

struct Fixed {
  std::uint32_t magic, version, head_bytes, group, first_layer, layers, tokens, zero;
  std::uint64_t segment_bytes;
  Digest key, layout;
};
static_assert(sizeof(Fixed) == 104);

constexpr std::size_t padded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

std::size_t head_bytes_for(std::size_t tokens, std::size_t layers) {
  return padded(sizeof(Fixed) + tokens * sizeof(std::uint32_t)) + (layers + 1) * kChecksumBytes;
}

void put_checksum(std::span<const std::byte> of, std::byte* to) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(of.data(), of.size()));
  std::memcpy(to, canonical.digest, kChecksumBytes);
}

bool checksum_is(std::span<const std::byte> of, const std::byte* expected) {
  std::byte found[kChecksumBytes];
  put_checksum(of, found);
  return std::memcmp(found, expected, kChecksumBytes) == 0;
}

Error corrupt(std::string what) {
  return {Code::corrupt, "block record: " + std::move(what) + "; it counts as a miss"};
}

}  // namespace

bool RecordView::segment_ok(std::uint32_t layer, std::span<const std::byte> segment) const {
  return layer < head.layers && segment.size() == head.segment_bytes &&
         checksum_is(segment, checksums.data() + layer * kChecksumBytes);
}

std::size_t record_head_bytes(const RecordHead& head) {
  return head_bytes_for(head.tokens.size(), head.layers);
}

std::vector<std::byte> encode_record(const RecordHead& head, std::span<const std::byte> block) {
  CHECK(head.layers <= kRecordLayersMax && head.tokens.size() <= kRecordTokensMax &&
        head.segment_bytes <= kRecordSegmentMax);
  const std::size_t segments = head.segment_bytes * head.layers;
  CHECK(block.size() >= segments);
  const std::size_t head_bytes = record_head_bytes(head);
  std::vector<std::byte> out(head_bytes + segments);  // padding is zero
  const Fixed fixed{.magic = kMagic,
                    .version = kRecordVersion,
                    .head_bytes = static_cast<std::uint32_t>(head_bytes),
                    .group = head.group,
                    .first_layer = head.first_layer,
                    .layers = head.layers,
                    .tokens = static_cast<std::uint32_t>(head.tokens.size()),
                    .zero = 0,
                    .segment_bytes = head.segment_bytes,
                    .key = head.key.bytes,
                    .layout = head.layout};
  std::memcpy(out.data(), &fixed, sizeof fixed);
  if (!head.tokens.empty())
    std::memcpy(out.data() + sizeof fixed, head.tokens.data(),
                head.tokens.size() * sizeof(std::uint32_t));
  std::byte* checksum = out.data() + head_bytes - (head.layers + 1) * kChecksumBytes;
  for (std::uint32_t layer = 0; layer < head.layers; ++layer, checksum += kChecksumBytes)
    put_checksum(block.subspan(layer * head.segment_bytes, head.segment_bytes), checksum);
  put_checksum({out.data(), head_bytes - kChecksumBytes}, checksum);
  if (segments != 0) std::memcpy(out.data() + head_bytes, block.data(), segments);
  return out;
}

Result<RecordView> read_record(std::span<const std::byte> bytes) {
  Fixed fixed;
  if (bytes.size() < sizeof fixed)
    return corrupt(fmt::format("{} bytes are too few for a head", bytes.size()));
  std::memcpy(&fixed, bytes.data(), sizeof fixed);
  if (fixed.magic != kMagic) return corrupt("does not begin with QKVR");
  if (fixed.version != kRecordVersion)
    return Error{Code::unsupported, fmt::format("block record: version {}, this program reads {}; "
                                                "it counts as a miss",
                                                fixed.version, kRecordVersion)};
  if (fixed.layers > kRecordLayersMax || fixed.tokens > kRecordTokensMax ||
      fixed.segment_bytes > kRecordSegmentMax)
    return corrupt(fmt::format("claims {} layers of {} bytes and {} tokens", fixed.layers,
                               fixed.segment_bytes, fixed.tokens));
  const std::size_t head_bytes = head_bytes_for(fixed.tokens, fixed.layers);
  if (fixed.head_bytes != head_bytes)
    return corrupt(fmt::format("a head of {} bytes, {} expected", fixed.head_bytes, head_bytes));
  if (bytes.size() < head_bytes)
    return corrupt(fmt::format("{} bytes of a head of {}", bytes.size(), head_bytes));
  if (!checksum_is(bytes.first(head_bytes - kChecksumBytes),
                   bytes.data() + head_bytes - kChecksumBytes))
    return corrupt("the head's checksum does not fit");
  const std::size_t tokens_end = sizeof fixed + fixed.tokens * sizeof(std::uint32_t);
  const auto padding = bytes.subspan(tokens_end, padded(tokens_end) - tokens_end);
  if (fixed.zero != 0 ||
      std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{}; }))
    return corrupt("what should be zero is not");

  RecordView view;
  view.head_bytes = head_bytes;
  view.checksums = bytes.subspan(head_bytes - (fixed.layers + std::size_t{1}) * kChecksumBytes,
                                 fixed.layers * kChecksumBytes);
  view.head.key.bytes = fixed.key;
  view.head.layout = fixed.layout;
  view.head.group = fixed.group;
  view.head.first_layer = fixed.first_layer;
  view.head.layers = fixed.layers;
  view.head.segment_bytes = fixed.segment_bytes;
  view.head.tokens.resize(fixed.tokens);
  if (fixed.tokens != 0)
    std::memcpy(view.head.tokens.data(), bytes.data() + sizeof fixed,
                fixed.tokens * sizeof(std::uint32_t));
  return view;
}

}  // namespace quire
