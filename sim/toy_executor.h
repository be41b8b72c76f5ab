// sim/toy_executor.h - an executor without weights, for the simulator.
//
// A row's keys and values are a function of its token, its position, the layer, the head and a digest
// of all that the row read in the layers below. They are stored with the formats' own functions, and
// full blocks of lossy groups are encoded as the model does it. "Attention" adds up digests of the
// numbers in every slot that the row sees, so it depends on what was read and on nothing else. Logits
// are a function of the last layer's digest. So a wrong block, a stale row, a wrong position or a slot
// too many changes the answer.
//
//   ManualClock clock;
//   ToyExecutor toy(source->config(), clock, std::make_shared<PageNumbers>());
//   toy.trouble().nan = 0.01;            // now and then a row's logits are not finite
//
// Time passes on the clock when steps are completed. One thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/random.h"
#include "base/thread_pool.h"
#include "kernels/attend.h"
#include "kernels/vector.h"
#include "model/choosing.h"
#include "model/executor.h"
#include "model/rope.h"
#include "sim/page_numbers.h"
#include "sim/toy_step.h"

namespace quire {

// What goes wrong, by chance.
struct ToyTrouble {
  Random random{0};
  double lost = 0;                     // that the device does not answer, by step
  double nan = 0;                      // that a wanted row is not finite
  std::uint64_t losses = 0, nans = 0;  // so far
};

class ToyExecutor final : public Executor, public PageWork {
 public:
  ToyExecutor(const ModelConfig& config, ManualClock& clock, std::shared_ptr<PageNumbers> pages,
              bool draws = false, std::uint32_t rows_max = 512);

  ToyTrouble& trouble() { return trouble_; }
  void on_nap(std::function<void()> nap) { step_.on_nap(std::move(nap)); }
  // Whether somebody may hold room for a step: one is queued, or the last one was refused.
  bool busy() const { return submitted_ != completed_ || refused_; }

  const ExecutorTraits& traits() const override { return traits_; }
  const ModelConfig& config() const override { return config_; }
  Geometry geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const override;
  Status check_storage(const StoragePolicy& storage, const Geometry& geometry) const override;
  Result<StepTicket> submit(const StepPlan& plan) override;
  Result<StepResult> complete(StepTicket ticket) override;
  void copy_block(std::byte* to, const std::byte* from, std::size_t bytes) override;
  PageWork* page_work() override { return this; }
  SealError seal_error() const override { return {}; }
  WeightsInfo weights() const override { return {}; }

  void add_mass(const Geometry& geometry, const TapSequence& sequence, const Tap& tap,
                const MassAsk& ask, std::span<float* const> out) override;
  void rotate_keys(std::uint32_t layer, std::int32_t delta, std::uint32_t rows,
                   float* keys) override;
  std::span<const double> rotation(std::uint32_t) const override { return rope_.frequencies(); }
  EncodedPart sealed_part(const Geometry& geometry, std::uint32_t layer, std::uint32_t kv_head,
                          Side side, std::uint32_t position) const override;
  RopeView rope(std::uint32_t) const override { return rope_.view(); }

 private:
  bool is_lost();
  void find_logits(const StepPlan& plan, std::span<const std::uint64_t> states);
  void find_best(std::size_t rows);
  void draw(const Draws& draws);

  const ModelConfig config_;
  ManualClock& clock_;
  std::shared_ptr<PageNumbers> pages_;
  const VectorKernels& vector_;
  ExecutorTraits traits_;
  RopeTable rope_;
  ToyTrouble trouble_;
  ToyStep step_;
  // A plan with its block tables as they are when it is submitted: a device copies them then.
  struct Queued {
    StepPlan plan;
    std::vector<KvView> groups;
    std::vector<KvSequenceView> sequences;
    std::vector<ArenaOffset> table;

    void take(const StepPlan& from);
  };
  Queued queue_[2] = {};
  std::uint32_t submitted_ = 0, completed_ = 0;  // steps, ever
  bool refused_ = false;                         // the last one that came
  std::vector<TokenId> tokens_;
  std::vector<float> logits_;
  std::vector<BestToken> best_;
  std::vector<Drawn> drawn_;
  std::vector<DrawList> lists_;
};

}  // namespace quire
