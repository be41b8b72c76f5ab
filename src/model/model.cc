#include "model/model.h"

#include <string>

#include "base/check.h"
#include "base/random.h"
#include "kernels/attend.h"
#include "kernels/sealed.h"
#include "model/device_model.h"
#include "model/pass.h"
#include "model/state.h"

namespace quire {

Result<std::unique_ptr<Model>> Model::load(const ModelSource& source, ThreadPool& pool,
                                           ModelOptions options) {
  if (options.device == DeviceKind::cuda) {
    TRY(std::unique_ptr<DeviceModel> device, DeviceModel::load(source, options));
    return std::unique_ptr<Model>(new Model(nullptr, std::move(device)));
  }
  TRY(Weights weights, load_weights(source, pool));
  auto state = std::make_unique<State>(source.config(), options, pool, std::move(weights));
  TRY_STATUS(state->size_scratch());
  return std::unique_ptr<Model>(new Model(std::move(state), nullptr));
}

Model::Model(std::unique_ptr<State> state, std::unique_ptr<DeviceModel> device)
    : state_(std::move(state)), device_(std::move(device)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return device_ ? device_->config() : state_->config; }
const ModelOptions& Model::options() const {
  return device_ ? device_->options() : state_->options;
}
std::uint64_t Model::weight_bytes() const {
  return device_ ? device_->weight_bytes() : state_->weights.memory.size();
}

const SealError& Model::seal_error() const {
  static const SealError kNone;  // nothing is sealed on a device yet
  return state_ ? state_->seal_error : kNone;
}

Geometry Model::geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const {
  return make_geometry(config(), tokens_per_block, policy);
}

std::uint64_t Model::numerics_id() const {
  if (device_) return device_->numerics_id();
  std::uint64_t id = 0;
  for (const std::uint64_t part :
       {std::uint64_t{kLinearVersion}, std::uint64_t{kAttendVersion},
        static_cast<std::uint64_t>(state_->options.activations), std::uint64_t{kEncodedVersion},
        std::uint64_t{kAttendUnit}, std::uint64_t{kAttendSplit}})
    id = mix64(id ^ part);
  return id;
}

Status Model::forward(const Geometry& geometry, const StepRows& step, float* logits) {
  CHECK(step.tokens.size() <= options().rows_max && step.tokens.size() == step.positions.size());
  CHECK(step.groups.size() == geometry.groups.size());
  if (step.tokens.empty()) return {};
  if (device_) {
    for (const KvView& view : step.groups)
      for (std::uint32_t s = 0; s < view.sequence_count; ++s)
        if (view.sequences[s].lanes != nullptr)
          return Error{Code::unsupported,
                       "the CUDA kernels do not read compacted sequences; use --device cpu"};
    return device_->forward(geometry, step, logits);
  }
  state_->prepare(geometry, step);
  state_->pool.run(
      [&](ThreadPool::Lane lane) { Pass(*state_, geometry, step, logits, lane).run(); });
  for (std::size_t i = 0; step.greedy && i < step.logit_rows.size(); ++i)
    step.greedy[i] = state_->vector.argmax(logits + i * config().vocabulary, config().vocabulary);
  return {};
}

Geometry make_geometry(const ModelConfig& config, std::uint32_t tokens_per_block,
                       const StoragePolicy& policy) {
  std::vector<LayerShape> layers;
  for (const LayerConfig& layer : config.per_layer)
    layers.push_back({.kind = layer.window ? GroupKind::window : GroupKind::full,
                      .kv_heads = config.kv_heads,
                      .key_dim = config.head_dim,
                      .value_dim = config.head_dim,
                      .window = layer.window});
  return build_geometry(layers, tokens_per_block, policy);
}

}  // namespace quire
