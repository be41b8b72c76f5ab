// replay/virtual_worker.h - a server in virtual time: the real scheduler, cache and tiers over an
// executor that only takes time. `quire replay` runs one, a plan asks one, and a simulation of many
// machines has many, each with a clock of its own.
//
//   TRY(auto worker, VirtualWorker::open({.capacity_blocks = 10000, .costs = costs}));
//   worker->submit(ask, worker->now());         // when it arrived
//   while (worker->busy()) worker->step();      // one step of its engine; its clock goes on
//   for (const VirtualEnd& e : worker->take_ended()) e.done.first_token_seconds;
//
//   const std::vector<VirtualEnd> ends = run_by_the_clock(*worker, trace.asks);
//
// Blocks have no bytes worth mention: a cache of a million blocks takes some 300 MB.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/engine.h"
#include "kv/tier/memory_tier.h"
#include "replay/asks.h"
#include "replay/virtual_executor.h"

namespace quire {

// A place for blocks outside memory.
struct VirtualTier {
  bool shared = false;       // "remote", which machines share, or else "disk"
  std::uint64_t blocks = 0;  // that fit; 0: no bound
  double first_byte_s = 1e-4, blocks_per_s = 1000;
};

struct VirtualWorkerOptions {
  std::uint64_t capacity_blocks = 0;
  std::uint32_t block_size = 32;  // tokens
  std::string evictor = "odds";
  StepCosts costs = {};
  std::uint32_t step_tokens = 512, prompt_tokens = 96, sequences_max = 64;
  std::uint32_t context = kMadeUpVocabulary;
  std::vector<VirtualTier> tiers = {};  // the fastest first
};

inline constexpr std::uint64_t kVirtualBlocksMax = 1u << 22;  // of memory, and of a tier

// A request that is over.
struct VirtualEnd {
  std::uint64_t number = 0;
  std::uint32_t prompt_tokens = 0, answer_tokens = 0;
  std::string problem = {};  // why it was refused or broken off; empty: it was answered
  Done done = {};            // of one that was answered
};

class VirtualWorker {
 public:
  static Result<std::unique_ptr<VirtualWorker>> open(const VirtualWorkerOptions& options);
  ~VirtualWorker();

  Nanoseconds now() const { return clock_.now(); }
  void advance_to(Nanoseconds time);  // nothing runs until then; earlier times change nothing
  void submit(const Ask& ask, Nanoseconds arrived);  // now or earlier
  bool busy() const { return engine_->has_jobs(); }
  // One step. False: nothing could be computed yet. Time then goes on to when a tier answers, or by a
  // millisecond, but not beyond `until`.
  bool step(Nanoseconds until = INT64_MAX);
  void give_up();  // whatever waits fails
  std::vector<VirtualEnd> take_ended() { return std::exchange(ended_, {}); }

  std::size_t waiting() const { return engine_->job_count(); }  // and running
  const ServiceStats& stats() { return engine_->stats(); }
  KvCache& cache() { return runtime_->cache(); }
  const VirtualWorkerOptions& options() const { return options_; }

 private:
  class Sink;
  explicit VirtualWorker(const VirtualWorkerOptions& options) : options_(options) {}
  Result<std::unique_ptr<TierLink>> open_tiers(const Geometry& geometry);

  VirtualWorkerOptions options_;
  ManualClock clock_;
  ServiceOptions service_;
  RequestLog log_{16};
  VirtualExecutor* executor_ = nullptr;
  std::vector<MemoryTier*> tiers_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Engine> engine_;
  std::vector<VirtualEnd> ended_;
  std::uint64_t jobs_ = 0;
};

// Each request is submitted when it arrives, whatever has become of those before. Stops early, with
// what has ended until then, if Stop asks (base/stop.h).
std::vector<VirtualEnd> run_by_the_clock(VirtualWorker& worker, std::span<const Ask> asks);

}  // namespace quire
