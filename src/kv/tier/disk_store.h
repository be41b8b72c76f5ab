// kv/tier/disk_store.h - records in a folder: find, read, write, erase, within a hard bound.
//
// Plain calls that block, for one thread: DiskTier (kv/tier/disk_tier.h) has that thread, `quire
// kv` calls it directly. Records are appended to volumes (kv/tier/disk_volume.h) in batches. When
// the bound is met, whole volumes leave, chosen by an evictor; their used records are copied. At
// the start the index is read from its snapshot, and where the snapshot knows less than the disk
// from footers or record heads. Records verify themselves: whatever happened to the folder, a read
// gives the right bytes or a miss.
//
//   TRY(auto store, DiskStore::open(*files, {.folder = {.path = dir}, .capacity_bytes = 1 << 30}));
//   store->write(writes, outcomes);
//   store->read(reads, [&](ReadEnd end) { ... });
//   if (store->broken()) store.reset();     // the disk said no; open it again later
//   store->save(true);
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv/evict/evict.h"
#include "kv/tier/disk_folder.h"
#include "kv/tier/disk_index.h"
#include "kv/tier/disk_volume.h"
#include "kv/tier/tier.h"

namespace quire {

inline constexpr std::uint32_t kVolumesMax = 1 << 18;  // files of one folder that are used

struct DiskStoreOptions {
  DiskFolderOptions folder;
  std::uint64_t capacity_bytes = UINT64_MAX;  // of all files together
  std::uint64_t volume_bytes = std::uint64_t{64} << 20;
  const EvictPolicy* evict = nullptr;       // of volumes; null: the default policy
  std::function<std::uint32_t()> now = {};  // seconds since 1970; empty: the system's
};

// What fsck found in one volume.
struct VolumeDamage {
  std::uint32_t volume;
  std::vector<std::string> problems;
};

class DiskStore {
 public:
  static Result<std::unique_ptr<DiskStore>> open(Files& files, const DiskStoreOptions& options);
  ~DiskStore();

  const DiskFolder& folder() const { return folder_; }
  const std::vector<std::string>& problems() const { return problems_; }  // met while opening
  const Error* broken() const { return broken_ ? &*broken_ : nullptr; }

  bool contains(const RecordName& name) { return index_.find(name) != nullptr; }
  // Calls `ended` for every read, as it ends.
  void read(std::span<const SegmentRead> reads, const std::function<void(ReadEnd)>& ended);
  void write(std::span<const RecordWrite> writes, std::span<TierOutcome> outcomes);
  void erase(std::span<const RecordName> names);
  Status clear();  // removes all records, and their bytes
  // Writes the snapshot; `durable` also syncs volumes and snapshot.
  Status save(bool durable);

  const DiskIndex& index() const { return index_; }
  TierStats stats() const;
  TierCost saved_cost() const { return cost_; }  // as the snapshot had it
  void set_cost(const TierCost& cost) { cost_ = cost; }
  std::uint64_t used_bytes() const;  // the volumes, and room for the rest
  std::size_t volume_count() const { return volumes_.size(); }

  // Verifies every byte of every volume. Records that are not whole leave the index.
  std::vector<VolumeDamage> check();
  // Moves the good records of these volumes to new ones, and removes the volumes.
  Status repair(std::span<const VolumeDamage> damage);

 private:
  struct Volume {
    std::uint64_t bytes = 0;  // of the file
    bool finished = false, unsynced = false;
    std::optional<FileId> file = {};
    // Of its records together.
    std::uint64_t records = 0, live_bytes = 0, hits = 0, recompute_us = 0;
    std::uint32_t last_use = 0;
    EvictId slot{};
  };
  struct ReadGroup;
  struct Lost {  // a record that could not be read
    DiskEntry entry;
    TierOutcome outcome;
    int error;
  };
  struct Staged {
    DiskEntry entry;     // `at` counts from the start of the batch
    std::size_t number;  // of the write; kCopied: moved from another volume
  };

  DiskStore(Files& files, const DiskStoreOptions& options, DiskFolder folder);

  // disk_store.cc: opening, the index, volumes.
  Status load();
  void load_volume(std::uint32_t number, std::uint64_t known);
  std::uint32_t now() const;
  void add(const DiskEntry& entry);
  void forget(const RecordName& name);
  void touch(DiskEntry& entry);
  Result<FileId> volume_file(std::uint32_t number);
  void close_file(Volume& volume);
  void trim_files();  // closes some if many are open
  EvictEntry evict_entry(std::uint32_t number, const Volume& volume) const;
  void offer(std::uint32_t number);  // to the evictor
  void withdraw(const Volume& volume);
  void fail(const Error& error);

  // disk_read.cc
  void read_window(std::span<const SegmentRead> reads, std::span<ReadGroup> groups,
                   const std::function<void(ReadEnd)>& ended);
  void read_parts(std::span<const SegmentRead> reads, std::span<ReadGroup* const> groups,
                  const std::function<void(ReadEnd)>& ended);
  static std::span<const std::byte> staged_segment(const ReadGroup& group, std::uint32_t segment,
                                                   std::uint64_t staged_at,
                                                   std::span<const std::byte> staged);
  TierOutcome read_segment(const ReadGroup& group, const SegmentRead& read,
                           std::span<const std::byte> stored, int error);
  TierOutcome read_head(ReadGroup& group, std::span<const std::byte> bytes, int error);
  void end_group(const ReadGroup& group, TierOutcome outcome,
                 const std::function<void(ReadEnd)>& ended);
  TierOutcome lose(const ReadGroup& group, int error, TierOutcome outcome);
  void settle_lost();
  Result<std::vector<std::byte>> read_raw(const DiskEntry& entry);
  void erase_in_place(const DiskEntry& entry);

  // disk_write.cc
  std::span<std::byte> stage(const DiskEntry& entry, std::size_t number);
  bool make_room(std::uint64_t bytes);
  bool reclaim(bool keep_used);
  void remove_volume(std::uint32_t number);
  void append_batch();
  void finish_volume();
  Status write_pages(std::uint32_t number, std::uint64_t at, std::span<std::byte> bytes);
  Result<std::uint32_t> writable_volume(std::uint64_t bytes);

  static constexpr std::size_t kCopied = SIZE_MAX;

  Files& files_;
  DiskStoreOptions options_;
  DiskFolder folder_;
  std::uint64_t volume_limit_;
  DiskIndex index_;
  std::map<std::uint32_t, Volume> volumes_;
  std::uint64_t volume_bytes_ = 0;  // of all files
  std::uint32_t current_ = 0;       // the volume that is written; 0: none
  std::uint32_t last_number_ = 0;
  std::unique_ptr<Evictor> evictor_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<std::uint32_t> slot_volume_;  // number, by EvictId
  std::vector<std::uint32_t> open_files_;   // volumes, oldest first
  AlignedBuffer staging_, batch_;
  std::uint64_t batch_bytes_ = 0;
  std::vector<Staged> staged_;
  std::span<TierOutcome> outcomes_;                     // of the write() that is running
  std::map<RecordName, std::vector<std::byte>> heads_;  // of records that are read part by part
  std::vector<Lost> lost_;
  std::vector<std::string> problems_;
  std::optional<Error> broken_;
  TierCost cost_;
  TierStats counts_;
};

}  // namespace quire
