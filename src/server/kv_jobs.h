// server/kv_jobs.h - work on the cache that takes longer than a request may wait: moving blocks to a
// tier, encoding them in another format.
//
//   const std::string id = jobs.add("move", blocks, [](KvJob& job) { ... job.advance(16); });
//   jobs.show(id);       // {"id", "kind", "state", "done_blocks", "total_blocks", "error"}
//
// One thread runs them one after the other, in small parts on the engine thread. The last ones are
// remembered.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/json.h"
#include "base/result.h"

namespace quire {

class Server;

class KvJob {
 public:
  void advance(std::uint64_t blocks) { done_ += blocks; }
  void set_total(std::uint64_t blocks) { total_ = blocks; }
  bool cancelled() const { return cancelled_; }

 private:
  friend class KvJobs;
  enum class State : std::uint8_t { queued, running, done, failed, cancelled };
  std::string id, kind;
  std::function<Status(KvJob&)> work;
  State state = State::queued;  // this and the next: under the table's lock
  std::string error;
  std::atomic<std::uint64_t> done_{0}, total_{0};
  std::atomic<bool> cancelled_{false};
};

class KvJobs {
 public:
  KvJobs();
  ~KvJobs();  // cancels what is left

  // An error: too many wait.
  Result<std::string> add(std::string kind, std::function<Status(KvJob&)> work);
  Result<Json> show(const std::string& id) const;
  Json list() const;
  Result<Json> cancel(const std::string& id);
  void stop();  // cancels what is left, and waits for it

 private:
  static constexpr std::size_t kWaitingMax = 64, kKept = 256;
  static Json json(const KvJob& job);
  std::shared_ptr<KvJob> find(const std::string& id) const;
  void loop();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<KvJob>> jobs_;  // oldest first
  std::uint64_t next_ = 1;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace quire
