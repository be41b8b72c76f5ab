// model/cuda_executor.h - steps computed on one GPU. The cache must lie in that GPU's memory.
//
// A step that wants best tokens is queued on the device when it is submitted. Two may be in flight:
// the second reads the tokens that the first leaves on the device. Other steps run when they are
// completed.
//
//   TRY(auto executor, CudaExecutor::load(source, {.rows_max = 8192}));
#pragma once

#include <memory>
#include <vector>

#include "model/device_model.h"
#include "model/executor.h"

namespace quire {

class CudaExecutor final : public Executor {
 public:
  static Result<std::unique_ptr<CudaExecutor>> load(const ModelSource& source,
                                                    const ModelOptions& options);

  const ExecutorTraits& traits() const override { return traits_; }
  const ModelConfig& config() const override { return device_->config(); }
  Geometry geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const override;
  Status check_storage(const StoragePolicy& storage, const Geometry& geometry) const override {
    return device_->check_storage(storage, geometry);
  }
  Result<StepTicket> submit(const StepPlan& plan) override;
  Result<StepResult> complete(StepTicket ticket) override;
  void copy_block(std::byte* to, const std::byte* from, std::size_t bytes) override;
  PageWork* page_work() override { return nullptr; }
  SealError seal_error() const override { return {}; }
  WeightsInfo weights() const override { return {device_->weight_bytes(), device_->packed()}; }

  const DeviceModel& device_model() const { return *device_; }

 private:
  explicit CudaExecutor(std::unique_ptr<DeviceModel> device);
  void mark(const StepPlan& plan, std::span<const std::uint32_t> broken_rows);

  struct Queued {
    StepPlan plan;
    std::uint32_t ticket;  // of the device, if it is queued there
  };

  std::unique_ptr<DeviceModel> device_;
  ExecutorTraits traits_;
  Queued queue_[2] = {};
  std::uint32_t submitted_ = 0, completed_ = 0;  // steps, ever
  std::unique_ptr<float[]> logits_;
  std::size_t logits_size_ = 0;
  std::vector<BestToken> best_;
  std::vector<Drawn> drawn_;
  std::vector<std::uint8_t> broken_;  // by sequence, or empty
};

}  // namespace quire
