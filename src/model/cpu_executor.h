// model/cpu_executor.h - steps computed by a model whose weights lie in host memory.
//
// A step is computed when it is completed, on all threads of the pool. Two steps may be in flight,
// so that steps ahead can be tested without a GPU: the second may read the best tokens of the
// first.
//
//   TRY(auto executor, CpuExecutor::load(source, pool, {}));
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "kernels/vector.h"
#include "model/executor.h"
#include "model/model.h"

namespace quire {

class CpuExecutor final : public Executor, public PageWork {
 public:
  static Result<std::unique_ptr<CpuExecutor>> load(const ModelSource& source, ThreadPool& pool,
                                                   const ModelOptions& options);

  const ExecutorTraits& traits() const override { return traits_; }
  const ModelConfig& config() const override { return model_->config(); }
  Geometry geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const override;
  Status check_storage(const StoragePolicy&, const Geometry&) const override { return {}; }
  Result<StepTicket> submit(const StepPlan& plan) override;
  Result<StepResult> complete(StepTicket ticket) override;
  void copy_block(std::byte* to, const std::byte* from, std::size_t bytes) override;
  PageWork* page_work() override { return this; }
  SealError seal_error() const override { return model_->seal_error(); }
  WeightsInfo weights() const override { return {.bytes = model_->weight_bytes()}; }
  bool has_weights() const override { return model_->has_weights(); }
  Result<std::unique_ptr<SpareWeights>> read_weights(const ModelSource& source,
                                                     ThreadPool& pool) const override;
  void take_weights(std::unique_ptr<SpareWeights> weights) override;

  void add_mass(const Geometry& geometry, const TapSequence& sequence, const Tap& tap,
                const MassAsk& ask, std::span<float* const> out) override;
  void rotate_keys(std::uint32_t layer, std::int32_t delta, std::uint32_t rows,
                   float* keys) override;
  std::span<const double> rotation(std::uint32_t layer) const override;
  EncodedPart sealed_part(const Geometry& geometry, std::uint32_t layer, std::uint32_t kv_head,
                          Side side, std::uint32_t position) const override;
  RopeView rope(std::uint32_t layer) const override { return model_->rope(layer); }

  const Model& model() const { return *model_; }

 private:
  CpuExecutor(std::unique_ptr<Model> model, ThreadPool& pool);
  void find_best(std::size_t rows);

  // It grows and is never initialized, so memory of rows without logits is not touched.
  struct Floats {
    std::unique_ptr<float[]> at;
    std::size_t count = 0;
    float* cover(std::size_t wanted) {
      if (count < wanted) at = std::make_unique_for_overwrite<float[]>(count = wanted);
      return at.get();
    }
  };

  std::unique_ptr<Model> model_;
  ThreadPool& pool_;
  const VectorKernels& vector_;
  ExecutorTraits traits_;
  StepPlan queue_[2] = {};
  std::uint32_t submitted_ = 0, completed_ = 0;  // steps, ever
  std::vector<TokenId> tokens_;                  // of a step that reads what the one before found
  Floats logits_, pass_logits_;
  std::vector<BestToken> best_;
  std::vector<std::uint8_t> dropped_, broken_, broken_rows_;  // by sequence, and by row of a pass
};

}  // namespace quire
