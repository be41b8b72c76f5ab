// sim/toy_engine.h - the real engine, cache and programs over the toy executor and a virtual clock.
//
//   ToyEngine crowd({.cache_bytes = 300'000}, {.step_tokens = 32});
//   auto log = std::make_shared<AnswerLog>(request.choices);
//   Failure f = crowd.submit(std::move(request), log, id);
//   while (crowd.engine().has_jobs()) crowd.engine().step();
//   log->answers[0].tokens;
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kv/tier/memory_tier.h"
#include "sim/toy_executor.h"

namespace quire {

// All that the engine reported about a request.
class AnswerLog final : public RequestSink {
 public:
  struct Answer {
    std::vector<Choice> tokens;
    std::optional<Finish> finish;
  };
  explicit AnswerLog(std::uint32_t choices) : answers(choices) {}

  void admitted(const Admitted& a) override;
  void prompt_logprobs(std::vector<PromptLogprob> p) override;
  void token(std::uint32_t choice, const Choice& token) override;
  void finished(std::uint32_t choice, Finish how) override;
  void done(const Done& d) override;
  void failed(const Failure& f) override;
  bool over() const { return result || failure; }

  std::vector<Answer> answers;
  std::vector<PromptLogprob> prompt;
  std::optional<Admitted> admission;
  std::optional<Done> result;
  std::optional<Failure> failure;
};

// All layers see all; most see a window; latent attention.
enum class ToyModel : std::uint8_t { full, windows, latent };

struct ToyEngineOptions {
  ToyModel model = ToyModel::full;
  std::uint64_t cache_bytes = 0;
  std::uint32_t context = 320;
  std::string evictor = "cost";
  bool draws = false;             // tokens are drawn by the executor
  std::size_t page_bytes = 4096;  // of memory: slabs are whole pages
  std::uint32_t nodes = 2048;     // of the prefix index
  std::uint32_t key_bits = 256;   // fewer: keys of different blocks are equal
  Nanoseconds row_time = kToyRowTime;
  // Blocks are kept in tiers besides, the fastest first, which take time and make mistakes as these say.
  std::vector<MemoryTierOptions> tiers = {};
  TierWrite tier_write = TierWrite::automatic;
};

inline constexpr std::uint32_t kToyBlock = 16;  // tokens

class ToyEngine {
 public:
  ToyEngine(const ToyEngineOptions& options, ServiceOptions service);

  Engine& engine() { return *engine_; }
  Runtime& runtime() { return *runtime_; }
  KvCache& cache() { return runtime_->cache(); }
  ManualClock& clock() { return clock_; }
  ToyExecutor& executor() { return *executor_; }
  ToyTrouble& trouble() { return executor_->trouble(); }
  FailingMemory& memory() { return *memory_; }
  std::span<MemoryTier* const> tiers() { return tiers_; }
  const ToyEngineOptions& opened() const { return opened_; }
  const ServiceOptions& service() const { return service_; }

  struct Submitted {
    Failure failure;           // kind none: it runs
    std::uint32_t tokens_max;  // as it was cut to what fits
  };
  Submitted submit(Request request, std::shared_ptr<AnswerLog> log, JobId id);
  bool step();  // of the engine, and of the tier
  // Until everything is over. False: nothing runs although there are jobs.
  bool run();

 private:
  ToyEngineOptions opened_;
  ManualClock clock_;
  ServiceOptions service_;
  RequestLog log_{16};
  ToyExecutor* executor_ = nullptr;
  FailingMemory* memory_ = nullptr;
  std::vector<MemoryTier*> tiers_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace quire
