// kv/tier/disk_volume.h - one file of segments/: a page with a head, then records, then a footer.
//
// Records begin at multiples of 64 bytes. A batch of them begins and ends at a page (4096 bytes);
// the rest of its last page is zero. When a volume is full a DiskListing of it is appended, and an
// end mark in its last 64 bytes. Nothing is ever written over but the first four bytes of a record
// that is erased. So a walk that meets damage goes on at the next page.
//
//   walk_volume(reader, 4096, reader.size(), {.record = [&](auto at, auto& record, bool erased) {},
//                                             .gap = [&](auto at, auto bytes, bool zero) {}});
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/tier/disk_index.h"
#include "kv/tier/file_io.h"
#include "kv/tier/record.h"

namespace quire {

inline constexpr std::uint64_t kVolumeHeadBytes = kFileAlign;
inline constexpr std::uint32_t kVolumeNumberMax = 99'999'999;  // of eight digits
// No volume is as large. What is behind this in a file that somebody put there is not read.
inline constexpr std::uint64_t kVolumeBytesMax = std::uint64_t{1} << 30;

std::string volume_file_name(std::uint32_t number);                 // "00000007.qseg"
std::optional<std::uint32_t> volume_number(std::string_view name);  // of a file name

void encode_volume_head(std::uint32_t number, std::span<std::byte> page);
bool volume_head_ok(std::uint32_t number, std::span<const std::byte> page);

// Reads a volume through a window that moves forward.
class VolumeReader {
 public:
  VolumeReader(Files& files, FileId file, std::uint64_t bytes)
      : files_(files), file_(file), size_(std::min(bytes, kVolumeBytesMax)) {}

  std::uint64_t size() const { return size_; }
  // At most `count` bytes, fewer at the end of the volume or where it cannot be read. Valid until
  // the next call.
  std::span<const std::byte> bytes(std::uint64_t at, std::uint64_t count);
  int error() const { return error_; }  // errno of a read that failed

 private:
  Files& files_;
  FileId file_;
  std::uint64_t size_, window_at_ = 0, window_bytes_ = 0;
  AlignedBuffer window_;
  int error_ = 0;
};

struct VolumeVisitor {
  std::function<void(std::uint64_t at, const RecordView& record, bool erased)> record;
  // What belongs to no record. `zero`: it is the unused end of a batch.
  std::function<void(std::uint64_t at, std::uint64_t bytes, bool zero)> gap;
};
// Bodies of records are skipped; a record whose body is cut off is a gap.
void walk_volume(VolumeReader& reader, std::uint64_t from, std::uint64_t to,
                 const VolumeVisitor& visitor);

// A whole number of pages, to be written at listing.volumes[0].bytes.
std::uint64_t footer_bytes(std::uint64_t entries);
void encode_footer(const DiskListing& listing, std::span<std::byte> out);
// The listing at the end of a volume, if there is one.
Result<DiskListing> read_footer(VolumeReader& reader, std::uint32_t number);

}  // namespace quire
