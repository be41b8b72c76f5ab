// server/dialect/responses/response_store.h - responses that clients refer to later, by tenant and id,
// within bounds.
//
//   TRY(auto store, ResponseStore::open({.folder = kv_dir + "/responses"}));
//   store->put("acme", "resp_1", {.json = text});
//   store->find("acme", "resp_1");       // null: never there, gone, expired, or another tenant's
//
// Memory holds all of them. The folder is a copy: a thread of the store's own writes it, and the next
// process reads it. If there are too many responses or bytes, the least recently used response of the
// tenant that has most goes. So one tenant alone may fill the store, and a tenant that has no more than
// its share loses nothing to others.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>

#include "kv/tier/file_io.h"
#include "server/dialect/dialect.h"
#include "server/dialect/responses/response_file.h"

namespace quire::responses {

struct ResponseStoreOptions {
  std::uint32_t count_max = 1024;
  std::uint64_t bytes_max = 64 << 20;                // one response may take an eighth of it
  std::int64_t ttl_s = 3600;                         // from when it was stored
  std::string folder = {};                           // empty: they end with the process
  std::shared_ptr<Files> files = {};                 // under the folder; none: the system's
  std::function<std::int64_t()> now_s = {};          // seconds since 1970; none: the clock's
  std::function<void(const std::string&)> log = {};  // what is wrong with the folder; any thread
};

class ResponseStore final : public DialectState {
 public:
  static Result<std::shared_ptr<ResponseStore>> open(ResponseStoreOptions options);
  ~ResponseStore() override;  // after flush()

  // Replaces one of the same id. False: it is too large, and is not kept.
  bool put(const std::string& tenant, const std::string& id, StoredResponse response);
  std::shared_ptr<const StoredResponse> find(const std::string& tenant, const std::string& id);
  // Runs `then` when the file is gone, on any thread. False: there is no such response.
  bool remove(const std::string& tenant, const std::string& id, std::function<void()> then = {});
  void flush() override;  // waits until the folder has everything, for some seconds at most

  std::uint64_t count() const;
  std::uint64_t bytes() const;

 private:
  struct Name {
    std::string tenant, id;
  };
  using Expiries = std::multimap<std::int64_t, Name>;
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    std::uint64_t bytes = 0;
    Expiries::iterator expiry = {};
  };
  struct Tenant {
    std::list<Entry> entries;  // last used first
    std::unordered_map<std::string, std::list<Entry>::iterator> by_id;
    std::uint64_t bytes = 0;
  };
  using Tenants = std::map<std::string, Tenant>;
  struct Job {
    Name name;
    std::shared_ptr<const StoredResponse> write;  // null: the file is removed
    std::function<void()> then = {};
  };

  explicit ResponseStore(ResponseStoreOptions options);
  Status load();
  // All with the mutex held.
  const Entry* find_entry(const std::string& tenant, const std::string& id);
  void insert(Name name, std::shared_ptr<const StoredResponse> response);
  void drop(const std::string& tenant, const std::string& id, std::function<void()> then = {});
  void drop_expired();
  void make_room();
  void enqueue(Job job);

  void work();                  // on the writer
  void do_job(const Job& job);  // likewise
  std::string path_of(const Name& name) const;

  const ResponseStoreOptions options_;
  mutable std::mutex mutex_;  // of all that follows, but for the writer
  Tenants tenants_;
  std::uint64_t count_ = 0, bytes_ = 0;
  Expiries expiries_;
  std::deque<Job> jobs_;
  std::uint64_t jobs_bytes_ = 0;  // that wait to be written
  bool working_ = false, over_ = false;
  std::condition_variable changed_;
  bool failing_ = false;  // the last job failed, and was complained about; the writer's own
  std::thread writer_;    // where there is a folder
};

}  // namespace quire::responses
