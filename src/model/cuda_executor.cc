#include "model/cuda_executor.h"

#include <algorithm>

#include "base/check.h"
#include "model/broken_rows.h"
#include "model/lacks.h"

namespace quire {
namespace {

StepRows rows_of_plan(const StepPlan& plan) {
  StepRows rows{.tokens = plan.tokens,
                .positions = plan.positions,
                .groups = plan.groups,
                .logit_rows = plan.wanted,
                .logprobs = plan.logprobs};
  if (plan.want == StepWant::drawn) rows.draws = &plan.draws;
  return rows;
}

}  // namespace

Result<std::unique_ptr<CudaExecutor>> CudaExecutor::load(const ModelSource& source,
                                                         const ModelOptions& options) {
  TRY_STATUS(check_layers(source, DeviceKind::cuda));
  TRY(std::unique_ptr<DeviceModel> device, DeviceModel::load(source, options));
  return std::unique_ptr<CudaExecutor>(new CudaExecutor(std::move(device)));
}

CudaExecutor::CudaExecutor(std::unique_ptr<DeviceModel> device)
    : device_(std::move(device)),
      traits_{.device = DeviceKind::cuda,
              .numerics = device_->numerics_id(),
              .rows_max = device_->options().rows_max,
              .in_flight = 2,
              .ahead = true,
              .draws = true} {}

// A device has no scratch memory for rows of lossy formats. With at least one recent block kept
// exact, all rows have a place in the cache.
Geometry CudaExecutor::geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const {
  StoragePolicy here = policy;
  if (policy.lossy()) here.recent_exact = std::max(here.recent_exact, 1u);
  Geometry made = make_geometry(config(), tokens_per_block, here);
  made.order = PageOrder::cuda;
  return made;
}

Result<StepTicket> CudaExecutor::submit(const StepPlan& plan) {
  CHECK(submitted_ - completed_ < 2 && plan.tokens.size() <= traits_.rows_max);
  Queued& queued = queue_[submitted_ % 2];
  queued.plan = plan;
  if (plan.want == StepWant::best) {
    // A step that was submitted before and is not queued on the device yet would run after this
    // one.
    CHECK(submitted_ == completed_ || queue_[completed_ % 2].plan.want == StepWant::best);
    if (best_.size() < plan.wanted.size()) best_.resize(plan.wanted.size());
    StepRows rows = rows_of_plan(plan);
    rows.greedy = best_.data();
    rows.ticket = &queued.ticket;
    TRY_STATUS(device_->forward(*plan.geometry, plan.serial, rows, nullptr));
  }
  return static_cast<StepTicket>(submitted_++);
}

Result<StepResult> CudaExecutor::complete(StepTicket ticket) {
  CHECK(static_cast<std::uint32_t>(ticket) == completed_ && completed_ < submitted_);
  const Queued& queued = queue_[completed_++ % 2];
  const StepPlan& plan = queued.plan;
  const std::size_t wanted = plan.wanted.size();
  if (plan.want == StepWant::best) {
    if (best_.size() < wanted) best_.resize(wanted);
    TRY_STATUS(device_->finish(queued.ticket, {best_.data(), wanted}));
    mark(plan, device_->broken(queued.ticket));
    return StepResult{.logits = {}, .best = {best_.data(), wanted}, .drawn = {}, .broken = broken_};
  }
  const std::size_t floats = wanted * config().vocabulary;
  if (logits_size_ < floats)
    logits_ = std::make_unique_for_overwrite<float[]>(logits_size_ = floats);
  StepRows rows = rows_of_plan(plan);
  if (plan.want == StepWant::drawn) {
    drawn_.assign(wanted, {});
    rows.drawn = drawn_.data();
  }
  TRY_STATUS(device_->forward(*plan.geometry, plan.serial, rows, logits_.get()));
  mark(plan, device_->broken());
  return StepResult{
      .logits = {logits_.get(), floats}, .best = {}, .drawn = drawn_, .broken = broken_};
}

void CudaExecutor::mark(const StepPlan& plan, std::span<const std::uint32_t> rows) {
  broken_.clear();
  if (!rows.empty()) mark_broken(plan.groups[0], rows, broken_);
}

void CudaExecutor::copy_block(std::byte* to, const std::byte* from, std::size_t bytes) {
  CHECK(device_->device().api->copy_on_device(to, from, bytes, device_->stream()) == 0);
}

}  // namespace quire
