#include "kv/tier/disk_index.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

namespace quire {
namespace {

constexpr std::uint32_t kListingMagic = 0x58444951;  // "QIDX"
constexpr std::uint32_t kListingVersion = 1;
constexpr std::size_t kListingCheckBytes = 16;

struct ListingHead {
  std::uint32_t magic, version;
  std::uint64_t entries, volumes;
  double first_byte_s, bytes_per_s;
};
static_assert(sizeof(ListingHead) == 40 && sizeof(DiskExtent) == 16);

template <class T>
void put_all(std::string& out, const std::vector<T>& values) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
std::vector<T> take_all(std::string_view& from, std::uint64_t count) {
  std::vector<T> values(count);
  if (count != 0) std::memcpy(static_cast<void*>(values.data()), from.data(), count * sizeof(T));
  from.remove_prefix(count * sizeof(T));
  return values;
}

XXH128_canonical_t listing_sum(std::string_view bytes) {
  XXH128_canonical_t sum;
  XXH128_canonicalFromHash(&sum, XXH3_128bits(bytes.data(), bytes.size()));
  return sum;
}

Error bad_listing(const char* what) {
  return {Code::corrupt, std::string("index of records: ") + what};
}

bool by_place(const DiskEntry& a, const DiskEntry& b) {
  return std::tie(a.volume, a.at) < std::tie(b.volume, b.at);
}

}  // namespace

DiskEntry* DiskIndex::find(const RecordName& name) {
  if (slots_.empty()) return nullptr;
  for (std::size_t i = home(name); slots_[i].volume != 0; i = after(i))
    if (slots_[i].name == name) return &slots_[i];
  return nullptr;
}

void DiskIndex::insert(const DiskEntry& entry) {
  CHECK(entry.volume != 0);
  if (DiskEntry* same = find(entry.name)) {
    *same = entry;
    return;
  }
  if ((size_ + 1) * 5 > slots_.size() * 4) grow();
  std::size_t i = home(entry.name);
  while (slots_[i].volume != 0) i = after(i);
  slots_[i] = entry;
  ++size_;
}

bool DiskIndex::erase(const RecordName& name) {
  DiskEntry* const found = find(name);
  if (found == nullptr) return false;
  // Later entries of the run move up, so that no search ends at the hole.
  std::size_t hole = static_cast<std::size_t>(found - slots_.data());
  slots_[hole].volume = 0;
  for (std::size_t i = after(hole); slots_[i].volume != 0; i = after(i)) {
    const std::size_t wanted = home(slots_[i].name);
    const bool stays = hole <= i ? hole < wanted && wanted <= i : hole < wanted || wanted <= i;
    if (stays) continue;
    slots_[hole] = slots_[i];
    slots_[i].volume = 0;
    hole = i;
  }
  --size_;
  return true;
}

void DiskIndex::grow() {
  std::vector<DiskEntry> before(std::max<std::size_t>(16, slots_.size() * 3 / 2));
  before.swap(slots_);
  for (const DiskEntry& e : before) {
    if (e.volume == 0) continue;
    std::size_t i = home(e.name);
    while (slots_[i].volume != 0) i = after(i);
    slots_[i] = e;
  }
}

std::vector<DiskEntry> DiskIndex::entries() const {
  std::vector<DiskEntry> all;
  all.reserve(size_);
  for_each([&](const DiskEntry& e) { all.push_back(e); });
  std::ranges::sort(all, by_place);
  return all;
}

std::vector<DiskEntry> DiskIndex::entries_of(std::uint32_t volume) const {
  std::vector<DiskEntry> some;
  for_each([&](const DiskEntry& e) {
    if (e.volume == volume) some.push_back(e);
  });
  std::ranges::sort(some, by_place);
  return some;
}

std::uint64_t listing_bytes(std::uint64_t volumes, std::uint64_t entries) {
  return sizeof(ListingHead) + volumes * sizeof(DiskExtent) + entries * sizeof(DiskEntry) +
         kListingCheckBytes;
}

std::string encode_listing(const DiskListing& listing) {
  std::string out;
  out.reserve(listing_bytes(listing.volumes.size(), listing.entries.size()));
  const ListingHead head{kListingMagic,          kListingVersion,      listing.entries.size(),
                         listing.volumes.size(), listing.first_byte_s, listing.bytes_per_s};
  out.append(reinterpret_cast<const char*>(&head), sizeof head);
  put_all(out, listing.volumes);
  put_all(out, listing.entries);
  const XXH128_canonical_t sum = listing_sum(out);
  out.append(reinterpret_cast<const char*>(sum.digest), kListingCheckBytes);
  return out;
}

Result<DiskListing> decode_listing(std::string_view bytes) {
  ListingHead head;
  if (bytes.size() < sizeof head + kListingCheckBytes) return bad_listing("is too short");
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.magic != kListingMagic) return bad_listing("does not begin with QIDX");
  if (head.version != kListingVersion)
    return Error{Code::unsupported, "index of records: was written by another version"};
  if (head.entries > bytes.size() / sizeof(DiskEntry) ||
      head.volumes > bytes.size() / sizeof(DiskExtent) ||
      bytes.size() != listing_bytes(head.volumes, head.entries))
    return bad_listing("does not have the size that it claims");
  const std::string_view summed = bytes.substr(0, bytes.size() - kListingCheckBytes);
  if (std::memcmp(listing_sum(summed).digest, bytes.data() + summed.size(), kListingCheckBytes) !=
      0)
    return bad_listing("the checksum does not fit");

  DiskListing listing;
  const auto sane = [](double v) { return std::isfinite(v) && v >= 0; };
  if (!sane(head.first_byte_s) || !sane(head.bytes_per_s)) return bad_listing("states no cost");
  listing.first_byte_s = head.first_byte_s;
  listing.bytes_per_s = head.bytes_per_s;
  std::string_view rest = summed.substr(sizeof head);
  listing.volumes = take_all<DiskExtent>(rest, head.volumes);
  listing.entries = take_all<DiskEntry>(rest, head.entries);
  std::uint32_t before = 0;
  for (const DiskExtent& v : listing.volumes) {
    if (v.number <= before || v.finished > 1) return bad_listing("its volumes are out of order");
    before = v.number;
  }
  for (const DiskEntry& e : listing.entries) {
    const auto v = std::ranges::lower_bound(listing.volumes, e.volume, {}, &DiskExtent::number);
    if (v == listing.volumes.end() || v->number != e.volume ||
        e.first_byte() + e.bytes() > v->bytes || e.head_units == 0 || e.head_units > e.units)
      return bad_listing("a record lies outside its volume");
  }
  return listing;
}

}  // namespace quire
