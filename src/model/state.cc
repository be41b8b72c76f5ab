#include "model/state.h"

#include <algorithm>

#include "base/check.h"

namespace quire {
namespace {

float* floats(const HugeBuffer& b) { return reinterpret_cast<float*>(b.data()); }

Result<HugeBuffer> scratch(std::size_t bytes) {
  return HugeBuffer::allocate(bytes, "the scratch of a step");
}

// What a step turns out to need beyond what was sized at the start: a few pages.
void grow(HugeBuffer& buffer, std::size_t bytes) {
  if (buffer.size() >= bytes) return;
  auto larger = scratch(bytes);
  CHECK(larger.ok());
  buffer = std::move(larger.value());
}

template <class F>
void each_matrix(const Weights& w, F f) {
  f(w.head);
  for (const LayerWeights& l : w.layers) {
    for (const ProjectionPart& p : l.qkv) f(p.matrix);
    f(l.out);
    f(l.down);
    if (l.gate_up_interleaved) {
      f(l.gate_up);
    } else {
      f(l.gate);
      f(l.up);
    }
  }
}

}  // namespace

Status Site::size(Activations mode, std::uint32_t row_count, std::uint32_t input_count,
                  bool quantized, bool with_plain) {
  rows = row_count;
  inputs = input_count;
  if (quantized) {
    TRY(encoded, scratch(activation_bytes(Activations::int16, rows, inputs)));
  }
  if (with_plain) {
    TRY(plain, scratch(std::size_t{rows} * inputs * sizeof(float)));
  }
  view = {
      .mode = mode, .rows = rows, .inputs = inputs, .data = encoded.data(), .plain = floats(plain)};
  fine = view;
  fine.mode = Activations::int16;
  return {};
}

Model::State::State(ModelConfig c, ModelOptions o, ThreadPool& p, Weights w)
    : config(std::move(c)),
      options(o),
      pool(p),
      weights(std::move(w)),
      linear(linear_kernels(o.isa)),
      vector(vector_kernels(o.isa)),
      attend(attend_kernels(o.isa)),
      next_task(config.layers) {
  each_matrix(weights, [&](const PackedMatrix& m) {
    (uses_quantized_activations(m.type) ? quantized : plain) = true;
  });
  for (const RopeConfig& rope : config.ropes) ropes.emplace_back(rope);
}

Status Model::State::size_scratch() {
  const std::uint32_t rows = options.rows_max, width = config.query_heads * config.head_dim;
  const auto matrix = [&](std::uint32_t columns) {
    return scratch(std::size_t{rows} * columns * sizeof(float));
  };
  TRY(x, matrix(config.hidden));
  TRY(y, matrix(config.hidden));
  TRY(tail_x, matrix(config.hidden));
  TRY(queries, matrix(width));
  TRY(attended_rows, matrix(width));
  TRY_STATUS(hidden.size(options.activations, rows, config.hidden, quantized, plain));
  TRY_STATUS(attended.size(options.activations, rows, width, quantized, plain));
  TRY_STATUS(inner.size(options.activations, rows, config.feed_forward, quantized, plain));
  TRY_STATUS(head.size(options.activations, rows, config.hidden, quantized, plain));
  lanes.resize(pool.size());
  const std::uint32_t unit_columns = std::max(config.head_dim, 2 * kGateUpUnit);
  for (LaneScratch& lane : lanes) {
    TRY_STATUS(lane.hidden.size(options.activations, kFewRows, config.hidden, quantized, plain));
    TRY_STATUS(lane.attended.size(options.activations, kFewRows, width, quantized, plain));
    lane.x.resize(std::size_t{kFewRows} * config.hidden);
    lane.row.resize(std::max({config.hidden, width, config.feed_forward}));
    TRY(lane.unit, matrix(unit_columns));
  }
  return {};
}

void Model::State::prepare(const Geometry& geometry, const StepRows& step) {
  for (auto& counter : next_task) counter.store(0, std::memory_order_relaxed);
  std::uint32_t end = 0;
  for (const std::uint32_t p : step.positions) end = std::max(end, p + 1);
  for (RopeTable& rope : ropes) rope.cover(end);

  groups.resize(step.groups.size());
  std::size_t partial_bytes = 0, scratch_bytes = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const LayerGroup& group = geometry.groups[g];
    const KvView& view = step.groups[g];
    GroupStep& at = groups[g];
    at.shape = {.query_heads = config.query_heads,
                .kv_heads = group.kv_heads,
                .head_dim = group.key_dim,
                .scale = config.attention_scale,
                .rows = group.format->rows,
                .arithmetic = arithmetic(group.format->rows),
                .layer_index = 0,
                .page_bytes = geometry.page_bytes(group),
                .key_bytes = geometry.key_bytes(group)};
    at.view = view;
    at.plan.threads = pool.size();
    plan_attention(view, at.shape, at.plan);
    partial_bytes =
        std::max(partial_bytes, at.plan.partial_count * partial_floats(at.shape) * sizeof(float));
    scratch_bytes = std::max(scratch_bytes, attend_scratch_bytes(at.shape));
    at.places.resize(step.tokens.size());
    for (std::uint32_t s = 0; s < view.sequence_count; ++s) {
      const KvSequenceView& sequence = view.sequences[s];
      for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
        const std::uint32_t slot = sequence.past + i;
        at.places[sequence.first_row + i] = {
            arena_at(view.arena, sequence.blocks[slot / view.tokens_per_block]),
            slot % view.tokens_per_block};
      }
    }
  }
  prepare_tail(geometry, step);
  partial_bytes =
      std::max(partial_bytes, tail.plan.partial_count * partial_floats(tail.shape) * sizeof(float));
  grow(partials, partial_bytes);
  for (LaneScratch& lane : lanes) grow(lane.attend, scratch_bytes);
}

void Model::State::prepare_tail(const Geometry& geometry, const StepRows& step) {
  const GroupStep& last = groups[geometry.places.back().group];
  tail.shape = last.shape;
  tail_sequences.clear();
  if (step.logit_rows.size() == step.tokens.size()) {  // decoding: nobody stays behind
    tail.plan.partial_count = 0;
    return;
  }
  std::uint32_t s = 0;
  for (const std::uint32_t row : step.logit_rows) {  // ascending
    while (row >= last.view.sequences[s].first_row + last.view.sequences[s].row_count) ++s;
    KvSequenceView one = last.view.sequences[s];
    one.past += row - one.first_row;
    one.first_row = row;
    one.row_count = 1;
    tail_sequences.push_back(one);
  }
  tail.view = last.view;
  tail.view.sequences = tail_sequences.data();
  tail.view.sequence_count = static_cast<std::uint32_t>(tail_sequences.size());
  tail.plan.threads = pool.size();
  plan_attention(tail.view, tail.shape, tail.plan);
}

}  // namespace quire
