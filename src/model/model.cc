#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/random.h"
#include "kernels/attend.h"
#include "kernels/sealed.h"
#include "model/lacks.h"
#include "model/pass.h"
#include "model/state.h"

namespace quire {
namespace {

// Layers of the cold blocks' group whose attention the step computes. Keys and values of the last
// layer are enough where nobody asks for more.
std::uint32_t attended_layers(const Geometry& geometry, const StepRows& step) {
  const auto all = static_cast<std::uint32_t>(geometry.places.size());
  const std::uint32_t end = step.last_layer < all - 1 ? step.last_layer
                            : step.finished.empty()   ? all - 1
                                                      : all;
  return static_cast<std::uint32_t>(
      std::ranges::count_if(geometry.groups[step.cold->group()].layers,
                            [&](std::uint32_t layer) { return layer < end; }));
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const ModelSource& source, ThreadPool& pool,
                                           ModelOptions options) {
  if (options.fast)
    return Error{Code::unsupported,
                 "--fast is for --device cuda: on a CPU the exact order of sums costs nothing"};
  if (options.weights != WeightStorage::automatic)
    return Error{Code::unsupported,
                 "--weights is for --device cuda: a CPU computes with the file's own codes"};
  TRY_STATUS(check_layers(source, DeviceKind::cpu));
  TRY(PackedWeights weights, load_packed_weights(source, pool));
  auto state = std::make_unique<State>(source.config(), options, pool, std::move(weights));
  TRY_STATUS(state->scratch.size(source.config(), options, state->weights.kinds, pool.size()));
  return std::unique_ptr<Model>(new Model(std::move(state)));
}

Model::Model(std::unique_ptr<State> state) : state_(std::move(state)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return state_->config; }
const ModelOptions& Model::options() const { return state_->options; }
std::uint64_t Model::weight_bytes() const { return state_->weights.memory.size(); }

RopeView Model::rope(std::uint32_t layer) const { return state_->rope_of(layer).view(); }

EncodedPart Model::sealed_part(const Geometry& geometry, std::uint32_t layer, std::uint32_t kv_head,
                               Side side, std::uint32_t position) const {
  const LayerGroup& g = geometry.groups[geometry.places[layer].group];
  const bool keys = side == Side::keys;
  EncodedPart part = encoded_part(keys ? *g.format->keys : *g.format->values, side,
                                  geometry.page_shape(g).rows(side));
  part.calibration = keys ? g.key_calibration : g.value_calibration;
  part.member = geometry.row_place(layer).index % g.together;
  return state_->lane_part(part, layer, kv_head, position);
}

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

void Model::forward(const Geometry& geometry, const StepRows& asked, float* logits) {
  CHECK(asked.tokens.size() <= options().rows_max && asked.tokens.size() == asked.positions.size());
  CHECK(asked.groups.size() == geometry.groups.size());
  if (asked.tokens.empty()) return;
  StepRows step = asked;
  step.finished = state_->find_finished(asked);
  state_->prepare(geometry, step);
  if (step.cold) step.cold->begin(attended_layers(geometry, step));
  state_->pool.run(
      [&](ThreadPool::Worker worker) { Pass(*state_, geometry, step, logits, worker).run(); });
}

void Model::add_mass(const Geometry& geometry, const TapSequence& sequence, const Tap& tap,
                     const MassAsk& ask, std::span<float* const> out) {
  CHECK(out.size() == std::size_t{tap.layers()} * tap.query_heads());
  const LayerGroup& group = geometry.groups[tap.group()];
  const KvSequenceView& lossy = sequence.groups[tap.group()];
  const std::uint32_t row_group = geometry.row_place(group.layers[0]).group;
  const KvSequenceView& rows = sequence.groups[row_group];
  const LayerGroup& rows_of = geometry.groups[row_group];
  const std::uint32_t length = lossy.past, tokens = geometry.tokens_per_block;
  const std::uint32_t first = ask.first == 0xffffffffu ? tap.first() : ask.first;
  CHECK(first + ask.rows <= length && ask.rows > 0);
  const std::uint32_t sealed_end = group.sealed() ? length / tokens * tokens : length;
  const EncodedPart keys =
      encoded_part(*group.format->keys, Side::keys, geometry.page_shape(group).rows(Side::keys));
  const std::size_t page_bytes = geometry.page_bytes(group),
                    row_bytes = geometry.page_bytes(rows_of);
  const std::uint32_t heads = tap.query_heads() / group.kv_heads;
  CHECK(!ask.repeat || lossy.lanes == nullptr);
  state_->mass_scratch.resize(state_->pool.size());
  std::atomic<std::uint32_t> next{0};
  state_->pool.run([&](ThreadPool::Worker thread) {
    for (std::uint32_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < out.size();) {
      const std::uint32_t layer = task / tap.query_heads(), head = task % tap.query_heads();
      const std::uint32_t lane = layer * group.kv_heads + head / heads;
      const EncodedPart* const encoded = group.sealed() ? &keys : nullptr;
      const std::uint32_t kept = lossy.lanes ? lossy.lanes[lane].slots : 0;
      const KeyPart parts[] = {
          {kept > 0 ? lossy.lanes[lane].pages : nullptr, 0, 0, kept, encoded, group.format->rows},
          {lossy.blocks, lane * page_bytes, lossy.ragged_until, sealed_end, encoded,
           group.format->rows},
          {rows.blocks, lane * row_bytes, sealed_end, length, nullptr, rows_of.format->rows}};
      const std::uint32_t own_end = kept + first + 1 - lossy.ragged_until;
      const MassInput in{.arena = sequence.arena,
                         .parts = parts,
                         .tokens_per_block = tokens,
                         .head_dim = group.key_dim,
                         .queries = tap.query(layer, first) + std::size_t{head} * tap.head_dim(),
                         .stride = std::size_t{tap.query_heads()} * tap.head_dim(),
                         .count = ask.rows,
                         .scale = state_->config.per_layer[group.layers[layer]].attn.scale,
                         .reach = ask.repeat
                                      ? MassReach{ask.sinks, ask.begin, ask.end, ask.own, own_end}
                                      : MassReach{.own_end = own_end},
                         .softcap = state_->config.per_layer[group.layers[layer]].attn.softcap};
      quire::add_mass(state_->mass, state_->encoded, in, ask.rule, ask.weight,
                      state_->mass_scratch[thread.index], out[task]);
    }
  });
}

void Model::rotate_keys(std::uint32_t layer, std::int32_t delta, std::uint32_t rows, float* keys) {
  CHECK(state_);
  RopeTable& rope = state_->rope_of(layer);
  const auto size = static_cast<std::uint32_t>(delta < 0 ? -delta : delta);
  rope.cover(size + 1);
  std::vector<float> sines(rope.sines(size), rope.sines(size) + rope.half());
  if (delta < 0)
    for (float& s : sines) s = -s;
  for (std::uint32_t i = 0; i < rows; ++i)
    state_->vector.rope(keys + std::size_t{i} * config().per_layer[layer].attn.key_dim,
                        2 * rope.half(), rope.cosines(size), sines.data());
}

std::span<const double> Model::rotation(std::uint32_t layer) const {
  CHECK(state_);
  return state_->rope_of(layer).frequencies();
}

Geometry make_geometry(const ModelConfig& config, std::uint32_t tokens_per_block,
                       const StoragePolicy& policy) {
  std::vector<LayerShape> layers;
  for (const LayerSpec& layer : config.per_layer)
    layers.push_back({.kind = layer.attn.window ? GroupKind::window : GroupKind::full,
                      .kv_heads = layer.attn.kv_heads,
                      .key_dim = layer.attn.key_dim,
                      .value_dim = layer.attn.value_dim,
                      .window = layer.attn.window});
  return build_geometry(layers, tokens_per_block, policy);
}

}  // namespace quire
