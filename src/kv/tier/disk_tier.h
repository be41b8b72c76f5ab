// kv/tier/disk_tier.h - a DiskStore behind the Tier interface, with a thread of its own.
//
// Reads are served before writes; at most 4 MiB are written between two looks at the inbox. When
// the disk says no (full, broken, read-only, gone) the tier closes itself: everything is a miss,
// one line is logged, and it tries to open again after a second, then less and less often. A tier
// that closes again within a minute says nothing more.
//
//   TRY(auto tier, DiskTier::open({.store = {.folder = {.path = dir}, .capacity_bytes = bytes},
//                                  .mailbox = &mailbox}));       // a folder in use is an error
//   tier->secret().key_secret();                                 // for the keys of blocks
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "kv/tier/disk_store.h"
#include "kv/tier/mailbox.h"
#include "kv/tier/tier_meter.h"

namespace quire {

struct DiskTierOptions {
  DiskStoreOptions store;
  Mailbox* mailbox = nullptr;                                  // outlives the tier
  std::function<void(const std::string&)> log = {};            // from the tier's thread
  std::unique_ptr<Files> files = nullptr;                      // null: the system's
  std::uint64_t write_queue_bytes = std::uint64_t{256} << 20;  // beyond: `full`
  Nanoseconds reopen_ns = 1'000'000'000;                       // the first wait
};

class DiskTier final : public Tier {
 public:
  static Result<std::unique_ptr<DiskTier>> open(DiskTierOptions options);
  ~DiskTier() override;  // answers what is queued with `cancelled`, and saves the index

  const DeploymentSecret& secret() const { return secret_; }

  const TierTraits& traits() const override { return traits_; }
  void find(std::span<const RecordName> names, FindDone done) override;
  void read(std::span<const SegmentRead> reads, ReadDone done) override;
  void write(std::span<const RecordWrite> writes, WriteDone done) override;
  void erase(std::span<const RecordName> names) override;
  void clear() override;
  void flush(std::function<void()> done) override;
  TierCost cost() const override { return meter_.cost(); }
  TierStats stats() const override { return meter_.stats(); }

 private:
  struct WriteJob {
    std::vector<RecordWrite> writes = {};
    std::vector<TierOutcome> outcomes = {};
    std::size_t next = 0;
    std::uint64_t bytes = 0;
    WriteDone done = {};
    std::function<void()> flushed = {};  // a flush: writes nothing itself
  };

  DiskTier(DiskTierOptions options, std::unique_ptr<DiskStore> store);

  // On the tier's thread.
  void work();
  void serve_reads(const std::vector<SegmentRead>& reads, const ReadDone& done);
  bool write_some();
  void close_if_broken();
  void reopen_if_due();
  void save_if_due();
  void publish();
  void wait();

  void ask(Mailbox::Letter letter);  // any thread

  DiskTierOptions options_;
  std::unique_ptr<Files> files_;
  DeploymentSecret secret_;
  TierTraits traits_;
  TierMeter meter_;
  int wake_ = -1;  // an eventfd
  Mailbox inbox_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> queued_writes_{0};

  // The thread's own.
  SteadyClock clock_;
  std::unique_ptr<DiskStore> store_;  // null: closed
  TierStats before_;                  // counts of stores that were closed
  std::deque<WriteJob> writes_;
  Nanoseconds reopen_at_ = 0, reopen_wait_ = 0, opened_at_ = 0, save_at_ = 0;
  bool quiet_ = false;  // it opens and closes again and again
  std::uint64_t saved_writes_ = 0;
  std::thread thread_;
};

}  // namespace quire
