#include "kv/tier/disk_volume.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"
#include "base/number.h"

namespace quire {
namespace {

constexpr std::uint32_t kVolumeMagic = 0x4c4f5651;     // "QVOL"
constexpr std::uint32_t kVolumeEndMagic = 0x444e4551;  // "QEND"
constexpr std::uint32_t kVolumeVersion = 1;
constexpr std::uint64_t kWindowBytes = 1 << 20;

struct VolumeHead {
  std::uint32_t magic, version, number, zero;
  std::uint64_t sum;  // of all before it
};

struct VolumeEnd {  // the last 64 bytes of a finished volume
  std::uint32_t magic, number;
  std::uint64_t footer_at, listing_bytes;
  std::uint8_t zero[32];
  std::uint64_t sum;  // of all before it
};
static_assert(sizeof(VolumeEnd) == 64);

template <class T>
std::uint64_t sum_of(const T& head) {
  return hash64(&head, offsetof(T, sum));
}

bool only_zeros(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; });
}

}  // namespace

std::string volume_file_name(std::uint32_t number) { return fmt::format("{:08}.qseg", number); }

std::optional<std::uint32_t> volume_number(std::string_view name) {
  std::uint32_t number = 0;
  if (name.size() != 13 || !name.ends_with(".qseg") || !parse_number(name.substr(0, 8), number) ||
      number == 0)
    return std::nullopt;
  return number;
}

void encode_volume_head(std::uint32_t number, std::span<std::byte> page) {
  CHECK(page.size() == kVolumeHeadBytes);
  VolumeHead head{kVolumeMagic, kVolumeVersion, number, 0, 0};
  head.sum = sum_of(head);
  std::fill(page.begin(), page.end(), std::byte{});
  std::memcpy(page.data(), &head, sizeof head);
}

bool volume_head_ok(std::uint32_t number, std::span<const std::byte> page) {
  VolumeHead head;
  if (page.size() != kVolumeHeadBytes) return false;
  std::memcpy(&head, page.data(), sizeof head);
  return head.magic == kVolumeMagic && head.version == kVolumeVersion && head.number == number &&
         head.zero == 0 && head.sum == sum_of(head) && only_zeros(page.subspan(sizeof head));
}

std::span<const std::byte> VolumeReader::bytes(std::uint64_t at, std::uint64_t count) {
  if (at >= size_) return {};
  count = std::min(count, size_ - at);
  if (at < window_at_ || at + count > window_at_ + window_bytes_) {
    window_at_ = align_down(at);
    const std::uint64_t wanted = std::max(align_up(at + count) - window_at_, kWindowBytes);
    window_.grow(wanted);
    IoRequest read{.file = file_, .at = window_at_, .bytes = window_.span().first(wanted)};
    transfer(files_, {&read, 1}, [](std::size_t) {});
    if (read.error != 0) error_ = read.error;
    window_bytes_ = read.done;
  }
  const std::uint64_t skip = at - window_at_;
  if (skip >= window_bytes_) return {};
  return window_.span().subspan(skip, std::min(count, window_bytes_ - skip));
}

void walk_volume(VolumeReader& reader, std::uint64_t from, std::uint64_t to,
                 const VolumeVisitor& visitor) {
  if (to > reader.size()) {
    const std::uint64_t end = std::max(from, reader.size());
    visitor.gap(end, to - end, false);
    to = reader.size();
  }
  for (std::uint64_t at = from; at < to;) {
    const std::size_t claim =
        record_claim(reader.bytes(at, std::min<std::uint64_t>(kRecordFixedBytes, to - at)));
    if (claim != 0 && claim <= to - at) {
      const auto head = reader.bytes(at, claim);
      auto view = read_record(head);
      const bool erased = !view.ok() && view.error().code == Code::not_found;
      if (erased) view = read_erased(head);
      if (view.ok() && view.value().record_bytes <= to - at) {
        visitor.record(at, view.value(), erased);
        at += align_up(view.value().record_bytes, kDiskUnit);
        continue;
      }
    }
    const std::uint64_t end = std::min(align_down(at) + kFileAlign, to);
    const auto rest = reader.bytes(at, end - at);
    visitor.gap(at, end - at, rest.size() == end - at && only_zeros(rest));
    at = end;
  }
}

std::uint64_t footer_bytes(std::uint64_t entries) {
  return align_up(listing_bytes(1, entries) + sizeof(VolumeEnd));
}

void encode_footer(const DiskListing& listing, std::span<std::byte> out) {
  CHECK(listing.volumes.size() == 1 && out.size() == footer_bytes(listing.entries.size()));
  const std::string bytes = encode_listing(listing);
  std::fill(out.begin(), out.end(), std::byte{});
  std::memcpy(out.data(), bytes.data(), bytes.size());
  VolumeEnd end{.magic = kVolumeEndMagic,
                .number = listing.volumes[0].number,
                .footer_at = listing.volumes[0].bytes,
                .listing_bytes = bytes.size(),
                .zero = {},
                .sum = 0};
  end.sum = sum_of(end);
  std::memcpy(out.data() + out.size() - sizeof end, &end, sizeof end);
}

Result<DiskListing> read_footer(VolumeReader& reader, std::uint32_t number) {
  const Error none{Code::not_found, "volume: it has no footer"};
  VolumeEnd end;
  if (reader.size() < kVolumeHeadBytes + kFileAlign) return none;
  const auto last = reader.bytes(reader.size() - sizeof end, sizeof end);
  if (last.size() != sizeof end) return none;
  std::memcpy(&end, last.data(), sizeof end);
  if (end.magic != kVolumeEndMagic || end.sum != sum_of(end) || end.number != number) return none;
  if (end.footer_at > reader.size() || end.listing_bytes > reader.size() - end.footer_at)
    return none;
  const auto bytes = reader.bytes(end.footer_at, reader.size() - end.footer_at);
  if (bytes.size() < end.listing_bytes + sizeof end ||
      !only_zeros(bytes.subspan(end.listing_bytes, bytes.size() - sizeof end - end.listing_bytes)))
    return Error{Code::corrupt, "volume: its footer is damaged"};
  TRY(DiskListing listing, decode_listing({reinterpret_cast<const char*>(bytes.data()),
                                           static_cast<std::size_t>(end.listing_bytes)}));
  if (listing.volumes.size() != 1 || listing.volumes[0].number != number ||
      listing.volumes[0].bytes != end.footer_at)
    return Error{Code::corrupt, "volume: its footer speaks of another volume"};
  return listing;
}

}  // namespace quire
