// kv/tier/disk_index.h - which record lies where on the disk: about 64 bytes of memory each.
//
// A DiskListing is the index, or the part of it that belongs to one volume, as checksummed bytes:
// the snapshot index.qidx and the footers of volumes. Records verify themselves, so a listing may
// be behind or ahead of the data; both are misses.
//
//   DiskIndex index;
//   index.insert(entry);                                   // replaces one of the same name
//   if (DiskEntry* e = index.find(name)) e->hits += 1;     // valid until the next insert or erase
//   std::string bytes = encode_listing({.volumes = ..., .entries = index.entries()});
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kv/tier/record.h"
#include "kv/tier/tier.h"

namespace quire {

inline constexpr std::uint64_t kDiskUnit = 64;  // places and sizes of records are multiples

struct DiskEntry {
  RecordName name;
  std::uint32_t volume = 0;      // its number; from 1
  std::uint32_t at = 0;          // in units
  std::uint32_t units = 0;       // of the whole record
  std::uint16_t head_units = 0;  // of its head
  std::uint16_t hits = 0;        // since it was written
  std::uint32_t last_use = 0;    // seconds since 1970
  std::uint32_t recompute_us = 0;

  std::uint64_t first_byte() const { return at * kDiskUnit; }
  std::uint64_t bytes() const { return units * kDiskUnit; }
  std::uint64_t head_bytes() const { return head_units * kDiskUnit; }
  bool operator==(const DiskEntry&) const = default;
};
static_assert(sizeof(DiskEntry) == 40);

class DiskIndex {
 public:
  std::size_t size() const { return size_; }
  DiskEntry* find(const RecordName& name);
  void insert(const DiskEntry& entry);
  bool erase(const RecordName& name);
  std::size_t memory_bytes() const { return slots_.size() * sizeof(DiskEntry); }

  template <class F>
  void for_each(F&& f) const {
    for (const DiskEntry& e : slots_)
      if (e.volume != 0) f(e);
  }
  std::vector<DiskEntry> entries() const;                         // all, by place
  std::vector<DiskEntry> entries_of(std::uint32_t volume) const;  // by place

 private:
  std::size_t home(const RecordName& name) const {  // names are uniform
    return static_cast<std::size_t>(static_cast<unsigned __int128>(name.prefix()) * slots_.size() >>
                                    64);
  }
  std::size_t after(std::size_t i) const { return i + 1 == slots_.size() ? 0 : i + 1; }
  void grow();

  std::vector<DiskEntry> slots_;  // open addressing; volume 0: empty
  std::size_t size_ = 0;
};

struct DiskExtent {                        // of a volume
  std::uint32_t number = 0, finished = 0;  // finished: has a footer, nothing is appended
  std::uint64_t bytes = 0;                 // what the listing knows of it

  bool operator==(const DiskExtent&) const = default;
};

struct DiskListing {
  double first_byte_s = 0, bytes_per_s = 0;  // TierCost; 0 in footers
  std::vector<DiskExtent> volumes = {};      // ascending
  std::vector<DiskEntry> entries = {};

  bool operator==(const DiskListing&) const = default;
};

std::uint64_t listing_bytes(std::uint64_t volumes, std::uint64_t entries);
std::string encode_listing(const DiskListing& listing);
// Every entry lies in a volume of the listing, inside its bytes.
Result<DiskListing> decode_listing(std::string_view bytes);

}  // namespace quire
