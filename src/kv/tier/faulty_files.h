// kv/tier/faulty_files.h - files in memory that fail as told: the double that tests and the
// simulator put under a tier.
//
// The object is the disk: it outlives the store that uses it. reboot() is a new process after a
// kill, or after a power loss, when what was not synced may be gone, torn or out of order. The same
// plan and seed give the same trouble.
//
//   FaultyFiles disk;
//   run_a_store(disk);                         // disk.write_calls() says how many there were
//   for (std::uint64_t n = 0; n < calls; ++n) {
//     FaultyFiles copy;                        // or: = a disk prepared before
//     copy.plan.kill_at = n;
//     run_a_store(copy);                       // call n does a part of its work; later ones fail
//     copy.reboot(FaultyFiles::Crash::power_loss, n);
//     check_a_store(copy);
//   }
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/tier/file_io.h"

namespace quire {

struct FaultPlan {
  static constexpr std::uint64_t kNever = UINT64_MAX;
  std::uint64_t kill_at = kNever;       // number of the write call that is the last one
  std::uint64_t error_at = kNever;      // the call (read or write) with this number fails ...
  int error = 0;                        // ... with this errno
  int every_write = 0, every_read = 0;  // an errno that all of them fail with
  std::uint64_t space_bytes = kNever;   // ENOSPC beyond
  double short_chance = 0, interrupt_chance = 0;
  std::int64_t sleep_ns = 0;  // in every call: a slow disk
};

class FaultyFiles final : public Files {
 public:
  enum class Crash : std::uint8_t { killed, power_loss };

  explicit FaultyFiles(std::uint64_t seed = 1) : random_(seed) {}

  FaultPlan plan;
  // plan.every_write, while another thread uses the files.
  void fail_writes(int error) {
    std::atomic_ref(plan.every_write).store(error, std::memory_order_relaxed);
  }
  void reboot(Crash crash, std::uint64_t seed);  // forgets open files, the lock and the plan
  bool dead() const { return dead_; }            // kill_at has come
  std::uint64_t write_calls() const { return write_calls_; }
  std::uint64_t calls() const { return calls_; }
  std::uint64_t bytes() const;                            // of all files
  std::uint64_t bytes_max() const { return bytes_max_; }  // that there ever were, since a reboot

  // For tests that damage files.
  std::vector<std::string> paths() const;
  std::string& content(const std::string& path) { return files_.at(path).bytes; }

  std::string_view way() const override { return "memory"; }
  Result<FileId> open(const std::string& path, OpenFor what) override;
  void close(FileId file) override;
  void run(std::span<IoRequest> requests, const std::function<void(std::size_t)>& ended) override;
  Status sync(FileId file) override;
  Result<std::string> read_whole(const std::string& path) override;
  Status write_whole(const std::string& path, std::string_view bytes, bool durable) override;
  Status remove(const std::string& path) override;
  Status make_folder(const std::string& path) override;
  Result<std::vector<FileEntry>> list(const std::string& folder) override;
  Result<FileId> lock(const std::string& path) override;

 private:
  struct Pending {  // a write that is not synced
    std::uint64_t at;
    std::string bytes;
  };
  struct Node {
    std::string bytes, synced;  // as processes see it; as the disk is sure to have it
    std::vector<Pending> pending = {};
    bool folder = false;
  };

  int trouble(bool write);  // errno of this call; 0: it works
  void put(Node& node, std::uint64_t at, std::string_view bytes);
  void put_torn(Node& node, std::uint64_t at, std::string_view bytes, Random& random);
  void run_one(IoRequest& request);

  std::map<std::string, Node> files_, removed_;
  std::map<std::uint32_t, std::string> open_;
  std::string locked_;
  std::uint32_t next_id_ = 0;
  std::uint64_t calls_ = 0, write_calls_ = 0, bytes_max_ = 0;
  bool dead_ = false, dying_ = false;
  Random random_;
};

}  // namespace quire
