// replay/virtual_executor.h - an executor that computes nothing: its steps take time on a clock, and
// answers say what they were told to say.
//
//   ManualClock clock;
//   VirtualExecutor executor(clock, {.costs = costs});
//   request.sampling.logit_bias = {{executor.recite(text), 1.0f}};
//   ...                                       // the engine draws what comes next in the text
//   executor.forget(number);
//
// A row of an answer is known by the only bias that its request has: the number of the text that it
// recites. Nothing is written to the pages of the cache, so they can be as small as can be.
#pragma once

#include <vector>

#include "base/clock.h"
#include "engine/step_costs.h"
#include "model/executor.h"

namespace quire {

struct VirtualExecutorOptions {
  StepCosts costs;
  std::uint32_t rows_max = 512, context = 1u << 22, vocabulary = 1u << 22;
};

class VirtualExecutor final : public Executor {
 public:
  VirtualExecutor(ManualClock& clock, const VirtualExecutorOptions& options);

  // A text that an answer goes on with, prompt included. The number stands for it until forget().
  TokenId recite(std::vector<TokenId> text);
  void forget(TokenId number);

  const ExecutorTraits& traits() const override { return traits_; }
  const ModelConfig& config() const override { return config_; }
  Geometry geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const override;
  Status check_storage(const StoragePolicy&, const Geometry&) const override { return {}; }
  Result<StepTicket> submit(const StepPlan& plan) override;
  Result<StepResult> complete(StepTicket ticket) override;
  void copy_block(std::byte*, const std::byte*, std::size_t) override {}
  PageWork* page_work() override { return nullptr; }
  SealError seal_error() const override { return {}; }
  WeightsInfo weights() const override { return {}; }

 private:
  ManualClock& clock_;
  StepCosts costs_;
  ModelConfig config_;
  ExecutorTraits traits_;
  std::vector<std::vector<TokenId>> texts_;  // by number
  std::vector<TokenId> free_;                // numbers that stand for nothing
  Nanoseconds takes_ = 0;                    // the step at hand
  std::vector<Drawn> drawn_;
  std::uint32_t submitted_ = 0, completed_ = 0;
};

}  // namespace quire
