#include "model/model.h"

#include <string>

#include "base/check.h"
#include "base/random.h"
#include "kernels/sealed.h"
#include "model/pass.h"
#include "model/state.h"

namespace quire {

Result<std::unique_ptr<Model>> Model::load(const ModelSource& source, ThreadPool& pool,
                                           ModelOptions options) {
  TRY(Weights weights, load_weights(source, pool));
  auto state = std::make_unique<State>(source.config(), options, pool, std::move(weights));
  TRY_STATUS(state->size_scratch());
  return std::unique_ptr<Model>(new Model(std::move(state)));
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return state_->config; }
const ModelOptions& Model::options() const { return state_->options; }
std::uint64_t Model::weight_bytes() const { return state_->weights.memory.size(); }

const SealError& Model::seal_error() const { return state_->seal_error; }

Geometry Model::geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const {
  return make_geometry(config(), tokens_per_block, policy);
}

std::uint64_t Model::numerics_id() const {
  std::uint64_t id = 0;
  for (const std::uint64_t part :
       {std::uint64_t{kLinearVersion}, std::uint64_t{kAttendVersion},
        static_cast<std::uint64_t>(state_->options.activations), std::uint64_t{kEncodedVersion},
        std::uint64_t{kAttendUnit}, std::uint64_t{kAttendSplit}})
    id = mix64(id ^ part);
  return id;
}

void Model::forward(const Geometry& geometry, const StepRows& step, float* logits) {
  CHECK(step.tokens.size() <= state_->options.rows_max &&
        step.tokens.size() == step.positions.size());
  CHECK(step.groups.size() == geometry.groups.size());
  if (step.tokens.empty()) return;
  state_->prepare(geometry, step);
  state_->pool.run(
      [&](ThreadPool::Lane lane) { Pass(*state_, geometry, step, logits, lane).run(); });
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
