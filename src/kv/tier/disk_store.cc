#include "kv/tier/disk_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace quire {
namespace {

constexpr std::size_t kOpenFilesMax = 256;
constexpr std::uint64_t kFileBytesMax = std::uint64_t{1} << 40;  // counted of a file; sums must fit
constexpr std::uint64_t kSmallFilesBytes = 24 << 10;             // manifest, secret, lock, probe

}  // namespace

Result<std::unique_ptr<DiskStore>> DiskStore::open(Files& files, const DiskStoreOptions& options) {
  TRY(DiskFolder folder, DiskFolder::open(files, options.folder));
  std::unique_ptr<DiskStore> store(new DiskStore(files, options, std::move(folder)));
  TRY_STATUS(store->load());
  return store;
}

DiskStore::DiskStore(Files& files, const DiskStoreOptions& options, DiskFolder folder)
    : files_(files), options_(options), folder_(std::move(folder)), problems_(folder_.problems()) {
  // A small store has small volumes, so that a few of them can leave.
  volume_limit_ = std::clamp<std::uint64_t>(align_down(options.capacity_bytes / 16),
                                            16 * kFileAlign, align_up(options.volume_bytes));
  const EvictPolicy* const policy =
      options.evict ? options.evict : find_evict_policy("cost").value();
  evictor_ = policy->make({.entries_max = kVolumesMax + 1});
}

DiskStore::~DiskStore() {
  for (auto& [number, volume] : volumes_) close_file(volume);
}

std::uint32_t DiskStore::now() const {
  return options_.now ? options_.now() : static_cast<std::uint32_t>(std::time(nullptr));
}

void DiskStore::fail(const Error& error) {
  if (!broken_) broken_ = error;
}

// The snapshot first; then, for volumes of which it does not know the end, footers or heads.
Status DiskStore::load() {
  auto listed = files_.list(folder_.volumes_path());
  if (!listed.ok()) return listed.error();
  for (const FileEntry& file : listed.value()) {
    const auto number = volume_number(file.name);
    if (!number || file.folder) continue;
    if (volumes_.size() >= kVolumesMax) break;
    if (file.bytes > kVolumeBytesMax)
      problems_.push_back(file.name + ": is larger than any volume; most of it is not read");
    volumes_[*number].bytes = std::min(file.bytes, kFileBytesMax);
    volume_bytes_ += volumes_[*number].bytes;
    last_number_ = std::max(last_number_, *number);
  }
  DiskListing snapshot;
  if (const auto bytes = files_.read_whole(folder_.index_path()); bytes.ok()) {
    auto decoded = decode_listing(bytes.value());
    if (decoded.ok())
      snapshot = std::move(decoded.value());
    else
      problems_.push_back("index.qidx: " + decoded.error().message + "; it is made again");
  } else if (bytes.error().code != Code::not_found) {
    return bytes.error();
  }
  cost_ = {.first_byte_s = snapshot.first_byte_s, .bytes_per_s = snapshot.bytes_per_s};

  std::map<std::uint32_t, std::uint64_t> known;
  for (const DiskExtent& extent : snapshot.volumes) {
    const auto it = volumes_.find(extent.number);
    if (it == volumes_.end() || it->second.bytes < extent.bytes) continue;
    known[extent.number] = extent.bytes;
    it->second.finished = extent.finished != 0 && it->second.bytes == extent.bytes;
  }
  for (const DiskEntry& entry : snapshot.entries)
    if (known.contains(entry.volume) && !contains(entry.name)) add(entry);
  for (const auto& [number, volume] : volumes_)
    if (known[number] != volume.bytes) load_volume(number, known[number]);

  // The last volume goes on where it ends, unless it is finished.
  if (const auto last = volumes_.find(last_number_); last != volumes_.end())
    if (!last->second.finished && last->second.bytes < volume_limit_) current_ = last_number_;
  for (const auto& [number, volume] : volumes_)
    if (number != current_) offer(number);
  if (!folder_.read_only())
    while (used_bytes() > options_.capacity_bytes && !broken_ && reclaim(false)) {
    }
  return {};
}

void DiskStore::load_volume(std::uint32_t number, std::uint64_t known) {
  Volume& volume = volumes_[number];
  const auto file = volume_file(number);
  if (!file.ok()) {
    problems_.push_back(file.error().message);
    return;
  }
  VolumeReader reader(files_, file.value(), volume.bytes);
  if (const auto footer = read_footer(reader, number); footer.ok()) {
    volume.finished = true;
    for (DiskEntry entry : footer.value().entries)
      if (!contains(entry.name)) add(entry);
    return;
  }
  const std::uint32_t time = now();
  const VolumeVisitor visitor{
      .record =
          [&](std::uint64_t at, const RecordView& record, bool erased) {
            const RecordName& name = record.head.identity.name;
            if (erased || contains(name)) return;
            add({.name = name,
                 .volume = number,
                 .at = static_cast<std::uint32_t>(at / kDiskUnit),
                 .units = static_cast<std::uint32_t>(align_up(record.record_bytes, kDiskUnit) /
                                                     kDiskUnit),
                 .head_units = static_cast<std::uint16_t>(record.head_bytes / kDiskUnit),
                 .hits = 0,
                 .last_use = time,
                 .recompute_us = record.head.recompute_us});
          },
      .gap = [](std::uint64_t, std::uint64_t, bool) {}};
  walk_volume(reader, std::max(align_down(known), kVolumeHeadBytes), volume.bytes, visitor);
}

void DiskStore::add(const DiskEntry& entry) {
  Volume& volume = volumes_[entry.volume];
  index_.insert(entry);
  volume.records += 1;
  volume.live_bytes += entry.bytes();
  volume.hits += entry.hits;
  volume.recompute_us += entry.recompute_us;
  volume.last_use = std::max(volume.last_use, entry.last_use);
}

void DiskStore::forget(const RecordName& name) {
  const DiskEntry* const entry = index_.find(name);
  if (entry == nullptr) return;
  Volume& volume = volumes_[entry->volume];
  volume.records -= 1;
  volume.live_bytes -= entry->bytes();
  volume.hits -= std::min<std::uint64_t>(volume.hits, entry->hits);
  volume.recompute_us -= entry->recompute_us;
  index_.erase(name);
  heads_.erase(name);
}

void DiskStore::touch(DiskEntry& entry) {
  Volume& volume = volumes_[entry.volume];
  entry.last_use = now();
  if (entry.hits < UINT16_MAX) {
    entry.hits += 1;
    volume.hits += 1;
  }
  volume.last_use = std::max(volume.last_use, entry.last_use);
  if (entry.volume != current_ && evictor_->contains(volume.slot)) {
    evictor_->remove(volume.slot);
    evictor_->add(volume.slot, evict_entry(entry.volume, volume));
  }
}

EvictEntry DiskStore::evict_entry(std::uint32_t number, const Volume& volume) const {
  constexpr Nanoseconds kSecond = 1'000'000'000;
  return {.key = number,
          .bytes = volume.bytes,
          .last_use = volume.last_use * kSecond,
          .recompute_ns = static_cast<Nanoseconds>(volume.recompute_us) * 1000,
          .expires = 0,
          .hits = static_cast<std::uint32_t>(std::min<std::uint64_t>(
              volume.hits / std::max<std::uint64_t>(volume.records, 1), UINT32_MAX))};
}

void DiskStore::offer(std::uint32_t number) {
  Volume& volume = volumes_[number];
  std::uint32_t slot = static_cast<std::uint32_t>(slot_volume_.size());
  if (free_slots_.empty()) {
    slot_volume_.push_back(number);
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
    slot_volume_[slot] = number;
  }
  volume.slot = static_cast<EvictId>(slot);
  evictor_->add(volume.slot, evict_entry(number, volume));
}

void DiskStore::withdraw(const Volume& volume) {
  const auto slot = static_cast<std::uint32_t>(volume.slot);
  if (evictor_->contains(volume.slot)) evictor_->remove(volume.slot);
  slot_volume_[slot] = 0;
  free_slots_.push_back(slot);
}

Result<FileId> DiskStore::volume_file(std::uint32_t number) {
  Volume& volume = volumes_[number];
  if (volume.file) return *volume.file;
  TRY(const FileId file, files_.open(folder_.volume_path(number),
                                     folder_.read_only() ? OpenFor::reading : OpenFor::writing));
  volume.file = file;
  open_files_.push_back(number);
  return file;
}

void DiskStore::close_file(Volume& volume) {
  if (!volume.file) return;
  files_.close(*volume.file);
  volume.file.reset();
  std::erase_if(open_files_, [&](std::uint32_t n) { return &volumes_[n] == &volume; });
}

void DiskStore::trim_files() {
  while (open_files_.size() > kOpenFilesMax) close_file(volumes_[open_files_.front()]);
}

std::uint64_t DiskStore::used_bytes() const {
  // The snapshot is written beside the one before; volumes that are not finished get a footer.
  return volume_bytes_ + 2 * align_up(listing_bytes(volumes_.size(), index_.size())) +
         kSmallFilesBytes;
}

TierStats DiskStore::stats() const {
  TierStats stats = counts_;
  stats.records = index_.size();
  stats.stored_bytes = volume_bytes_;
  return stats;
}

Status DiskStore::save(bool durable) {
  DiskListing listing{.first_byte_s = cost_.first_byte_s, .bytes_per_s = cost_.bytes_per_s};
  for (auto& [number, volume] : volumes_) {
    listing.volumes.push_back({number, volume.finished ? 1u : 0u, volume.bytes});
    if (!durable || !volume.unsynced) continue;
    TRY(const FileId file, volume_file(number));
    TRY_STATUS(files_.sync(file));
    volume.unsynced = false;
  }
  listing.entries = index_.entries();
  const Status saved = files_.write_whole(folder_.index_path(), encode_listing(listing), durable);
  if (!saved.ok()) fail(saved.error());
  return saved;
}

}  // namespace quire
