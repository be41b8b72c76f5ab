// engine/shared_cache.h - one KV cache for several models, and whose turn it is.
//
// Each model has a Runtime, an engine and a thread of its own; the cache, its arena and its budget are
// common. Roots tell models apart. One engine at a time works with the cache: it holds the *turn* while
// it reads its mail and runs a step. Turns come in the order in which they were asked for, so models
// that answer at the same time step alternately, and the processor's cores belong to one of them.
//
//   TRY(auto shared, SharedCache::make(runtime_options, budget));
//   runtime_options.shared = shared;                       // of every model
//   { const SharedCache::Turn turn(*shared); shared->cache().stats(); }
//
// Room. An engine that cannot go on takes the room of requests that came later than its own, whichever
// model they are for. If all others came earlier, its own request steps back and waits. So the oldest
// request of all always goes on, and each one is the oldest some day.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "kv/cache.h"

namespace quire {

class Engine;
struct RuntimeOptions;

class SharedCache {
 public:
  // Options of the cache as a Runtime would have them. Its budget is kv_cache_bytes.
  static Result<std::shared_ptr<SharedCache>> make(const RuntimeOptions& options);

  void lock();  // these two: see Turn
  void unlock();
  using Turn = std::unique_lock<SharedCache>;

  // For whoever has the turn.
  KvCache& cache() { return *cache_; }
  void join(Engine& engine) { engines_.push_back(&engine); }
  void leave(Engine& engine);
  bool others_run(const Engine& self) const;
  // Another engine gives way to a request of `self` that came at `submitted`. False: none can.
  bool take_room(const Engine& self, Nanoseconds submitted);
  // `self` runs nothing, and its next request, which came at `submitted`, has no room.
  void waits_for_room(const Engine& self, Nanoseconds submitted, Nanoseconds now);
  // Whether another engine waits so with a request that came earlier: then nobody else is admitted.
  bool another_waits(const Engine& self, Nanoseconds submitted, Nanoseconds now) const;

  const std::shared_ptr<KvCache>& shared_cache() const { return cache_; }
  const KeySecret& secret() const { return secret_; }  // for all threads, like those below
  std::uint64_t budget_bytes() const { return budget_bytes_; }
  std::size_t memory_page() const { return memory_page_; }

 private:
  SharedCache() = default;

  SteadyClock clock_;
  KeySecret secret_ = KeySecret::random();
  std::uint64_t budget_bytes_ = 0;
  std::size_t memory_page_ = 0;
  std::shared_ptr<KvCache> cache_;
  std::vector<Engine*> engines_;
  struct Waiting {
    const Engine* engine = nullptr;
    Nanoseconds submitted = 0, noted = 0;
  } waiting_;

  std::mutex mutex_;  // of the next
  std::condition_variable changed_;
  std::uint64_t next_ = 0, serving_ = 0;
};

}  // namespace quire
