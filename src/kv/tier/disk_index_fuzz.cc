// Listings and volumes from outside: what is accepted encodes to the same bytes, and a walk over
// any bytes visits each of them once.
#include <xxhash.h>

#include <cstring>
#include <string>

#include "kv/tier/disk_volume.h"
#include "kv/tier/faulty_files.h"

using namespace quire;

namespace {

void fuzz_listing(std::string bytes, bool repair) {
  if (repair && bytes.size() >= 16) {
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits(bytes.data(), bytes.size() - 16));
    std::memcpy(bytes.data() + bytes.size() - 16, sum.digest, 16);
  }
  const auto listing = decode_listing(bytes);
  if (!listing.ok()) return;
  CHECK(encode_listing(listing.value()) == bytes);
  DiskIndex index;
  for (const DiskEntry& e : listing.value().entries) index.insert(e);
  for (const DiskEntry& e : listing.value().entries) CHECK(index.find(e.name) != nullptr);
  for (const DiskEntry& e : listing.value().entries) {
    index.erase(e.name);
    CHECK(index.find(e.name) == nullptr);
  }
  CHECK(index.size() == 0);
}

void fuzz_volume(const std::string& bytes) {
  FaultyFiles disk;
  CHECK(disk.write_whole("volume", bytes, false).ok());
  const auto file = disk.open("volume", OpenFor::reading);
  VolumeReader reader(disk, file.value(), bytes.size());
  std::uint64_t next = 0;
  const VolumeVisitor visitor{.record =
                                  [&](std::uint64_t at, const RecordView& record, bool) {
                                    CHECK(at == next && record.record_bytes <= bytes.size() - at);
                                    next = at + align_up(record.record_bytes, kDiskUnit);
                                  },
                              .gap =
                                  [&](std::uint64_t at, std::uint64_t size, bool) {
                                    CHECK(at == next && size <= bytes.size() - at);
                                    next = at + size;
                                  }};
  walk_volume(reader, 0, bytes.size(), visitor);
  CHECK(next >= bytes.size());
  (void)read_footer(reader, 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] & 1)
    fuzz_listing(bytes, data[0] & 2);
  else
    fuzz_volume(bytes);
  return 0;
}
