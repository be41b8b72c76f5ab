#include "model/cpu_executor.h"

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "model/block_passes.h"
#include "model/broken_rows.h"

namespace quire {

Result<std::unique_ptr<CpuExecutor>> CpuExecutor::load(const ModelSource& source, ThreadPool& pool,
                                                       const ModelOptions& options) {
  TRY(std::unique_ptr<Model> model, Model::load(source, pool, options));
  return std::unique_ptr<CpuExecutor>(new CpuExecutor(std::move(model), pool));
}

CpuExecutor::CpuExecutor(std::unique_ptr<Model> model, ThreadPool& pool)
    : model_(std::move(model)),
      pool_(pool),
      vector_(vector_kernels(model_->options().isa)),
      traits_{.device = DeviceKind::cpu,
              .numerics = model_->numerics_id(),
              .rows_max = model_->options().rows_max,
              .in_flight = 2,
              .page_work = true,
              .gates = true,
              .cold_tokens = kAttendSplit} {}

Geometry CpuExecutor::geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const {
  return model_->geometry(tokens_per_block, policy);
}

Result<StepTicket> CpuExecutor::submit(const StepPlan& plan) {
  CHECK(submitted_ - completed_ < 2 && plan.want != StepWant::drawn);
  CHECK(plan.tokens.size() <= traits_.rows_max);
  queue_[submitted_ % 2] = plan;
  return static_cast<StepTicket>(submitted_++);
}

Result<StepResult> CpuExecutor::complete(StepTicket ticket) {
  CHECK(static_cast<std::uint32_t>(ticket) == completed_ && completed_ < submitted_);
  StepPlan& plan = queue_[completed_++ % 2];
  if (!plan.tokens.empty() && (plan.tokens[0] & kBestOfRow) != 0) {
    tokens_.assign(plan.tokens.begin(), plan.tokens.end());
    for (TokenId& t : tokens_)
      if ((t & kBestOfRow) != 0) t = best_[t & ~kBestOfRow].token;
    plan.tokens = tokens_;
  }
  const std::size_t vocabulary = config().vocabulary, wanted = plan.wanted.size();
  float* const logits = logits_.cover(wanted * vocabulary);
  dropped_.assign(plan.cold ? 1 : plan.gates.size(), 0);
  broken_.clear();
  const auto forward = [&](const StepPlan& p, float* to) {
    broken_rows_.assign(p.tokens.size(), 0);
    model_->forward(*p.geometry,
                    {.tokens = p.tokens,
                     .positions = p.positions,
                     .groups = p.groups,
                     .logit_rows = p.wanted,
                     .last_layer = p.last_layer,
                     .taps = p.taps,
                     .reads = p.reads,
                     .gates = p.gates,
                     .cold = p.cold,
                     .sealed = p.sealed,
                     .dropped = dropped_,
                     .broken = broken_rows_},
                    to);
    mark_broken<std::uint8_t>(p.groups[0], broken_rows_, broken_);
  };
  if (plan.geometry->by_block()) {
    BlockPasses passes(plan);
    while (passes.next()) {
      float* const some = pass_logits_.cover(passes.plan().wanted.size() * vocabulary);
      forward(passes.plan(), some);
      passes.place(some, vocabulary, logits);
    }
  } else {
    forward(plan, logits);
  }
  StepResult result{.logits = {}, .best = {}, .drawn = {}, .dropped = dropped_, .broken = broken_};
  if (plan.want == StepWant::logits) {
    result.logits = {logits, wanted * vocabulary};
    return result;
  }
  find_best(wanted);
  result.best = {best_.data(), wanted};
  return result;
}

void CpuExecutor::find_best(std::size_t rows) {
  if (best_.size() < rows) best_.resize(rows);
  const std::uint32_t vocabulary = config().vocabulary;
  const auto find = [&](std::size_t i) {
    const float* const of = logits_.at.get() + i * vocabulary;
    const TokenId best = vector_.argmax(of, vocabulary);
    const double sum =
        of[best] + std::log(static_cast<double>(vector_.sum_exp(of, of[best], vocabulary)));
    best_[i] = {best, static_cast<float>(of[best] - sum)};
  };
  if (rows == 1) return find(0);
  pool_.run([&](ThreadPool::Worker worker) {
    for (std::size_t i = worker.index; i < rows; i += worker.count) find(i);
  });
}

void CpuExecutor::copy_block(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

void CpuExecutor::add_mass(const Geometry& geometry, const TapSequence& sequence, const Tap& tap,
                           const MassAsk& ask, std::span<float* const> out) {
  model_->add_mass(geometry, sequence, tap, ask, out);
}

void CpuExecutor::rotate_keys(std::uint32_t layer, std::int32_t delta, std::uint32_t rows,
                              float* keys) {
  model_->rotate_keys(layer, delta, rows, keys);
}

std::span<const double> CpuExecutor::rotation(std::uint32_t layer) const {
  return model_->rotation(layer);
}

EncodedPart CpuExecutor::sealed_part(const Geometry& geometry, std::uint32_t layer,
                                     std::uint32_t kv_head, Side side,
                                     std::uint32_t position) const {
  return model_->sealed_part(geometry, layer, kv_head, side, position);
}

}  // namespace quire
