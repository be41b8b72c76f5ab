#include "model/state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/half.h"

namespace quire {
namespace {

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
                  bool quantized, bool half_sums, bool with_plain) {
  rows = row_count;
  inputs = input_count;
  if (quantized) {
    TRY(encoded, scratch(activation_bytes(Activations::int16, rows, inputs)));
  }
  if (with_plain) {
    TRY(plain, scratch(std::size_t{rows} * inputs * sizeof(float)));
  }
  view = {.mode = mode,
          .rows = rows,
          .inputs = inputs,
          .data = encoded.data(),
          .plain = floats(plain),
          .half_sums = half_sums};
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
      encoded(encoded_kernels(o.isa)),
      mass(mass_kernels(o.isa)),
      choosing(config, select_kernels(o.isa), mass),
      next_task(config.layers),
      next_seal(config.layers) {
  each_matrix(weights, [&](const PackedMatrix& m) {
    (uses_quantized_activations(m.type) ? quantized : plain) = true;
    half_sums |= uses_half_sums(m.type);
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
  TRY_STATUS(hidden.size(options.activations, rows, config.hidden, quantized, half_sums, plain));
  TRY_STATUS(attended.size(options.activations, rows, width, quantized, half_sums, plain));
  TRY_STATUS(
      inner.size(options.activations, rows, config.feed_forward, quantized, half_sums, plain));
  TRY_STATUS(head.size(options.activations, rows, config.hidden, quantized, half_sums, plain));
  lanes.resize(pool.size());
  const std::uint32_t unit_columns = std::max(config.head_dim, 2 * kGateUpUnit);
  for (LaneScratch& lane : lanes) {
    TRY_STATUS(lane.hidden.size(options.activations, kFewRows, config.hidden, quantized, half_sums,
                                plain));
    TRY_STATUS(
        lane.attended.size(options.activations, kFewRows, width, quantized, half_sums, plain));
    lane.x.resize(std::size_t{kFewRows} * config.hidden);
    lane.row.resize(std::max({config.hidden, width, config.feed_forward}));
    TRY(lane.unit, matrix(unit_columns));
  }
  return {};
}

void Model::State::prepare(const Geometry& geometry, const StepRows& step) {
  for (auto& counter : next_task) counter.store(0, std::memory_order_relaxed);
  for (auto& counter : next_seal) counter.store(0, std::memory_order_relaxed);
  ++steps;
  std::uint32_t end = 0;
  for (const std::uint32_t p : step.positions) end = std::max(end, p + 1);
  for (RopeTable& rope : ropes) rope.cover(end);

  groups.resize(step.groups.size());
  std::size_t partial_bytes = 0, scratch_bytes = 0;
  choosing.clear();
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    const LayerGroup& group = geometry.groups[g];
    KvView view = step.groups[g];
    if (!step.reads.empty() && group.kind == GroupKind::full && !choosing.active())
      choosing.prepare(geometry, g, step.reads, view);
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
    at.plan.threads = at.sealed_plan.threads = pool.size();
    at.sealed = group.sealed();
    at.seals.clear();
    scratch_bytes = std::max(scratch_bytes, attend_scratch_bytes(at.shape));
    at.places.resize(step.tokens.size());
    at.plan.partial_count = at.sealed_plan.partial_count = 0;
    list_past(geometry, group, at);
    if (!at.sealed) place_rows(geometry, group, at);
    if (!at.sealed && group.kind != GroupKind::recent) plan_attention(view, at.shape, at.plan);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].sealed) continue;
    prepare_sealed(geometry, geometry.groups[g], groups[g]);
    scratch_bytes = std::max(scratch_bytes, sealed_scratch_bytes(sealed_step(groups[g])));
  }
  const bool has_dense = choosing.active() && choosing.dense(0);
  if (has_dense) prepare_dense(groups[choosing.group()]);
  prepare_tail(geometry, step);
  const auto count = [&](const GroupStep& at) {
    const std::size_t n = std::max(at.plan.partial_count, at.sealed_plan.partial_count);
    partial_bytes = std::max(partial_bytes, n * partial_floats(at.shape) * sizeof(float));
  };
  for (const GroupStep& at : groups) count(at);
  if (has_dense) count(dense);
  count(tail);
  grow(partials, partial_bytes);
  for (LaneScratch& lane : lanes) grow(lane.attend, scratch_bytes);
}

// Blocks that a layer of the group reads and that other blocks do not push out of the last cache before
// it does. A few rows are bound by memory throughout, and what is chosen is not known yet.
void Model::State::list_past(const Geometry& geometry, const LayerGroup& group, GroupStep& at) {
  at.past_blocks.clear();
  const bool chooses = choosing.active() && &at == &groups[choosing.group()];
  if (at.places.size() <= kFewRows || group.kind == GroupKind::recent || chooses) return;
  const std::size_t room = kFetchBytes / (group.kv_heads * at.shape.page_bytes);
  at.past_blocks.reserve(room);
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const KvSequenceView& sequence = at.view.sequences[s];
    const std::uint64_t ragged = sequence.ragged_until / geometry.tokens_per_block;
    for (std::uint64_t b = std::max(ragged, geometry.first_block(group, sequence.past));
         b < geometry.block_end(group, sequence.past); ++b) {
      if (at.past_blocks.size() == room) return;
      at.past_blocks.push_back(arena_at(at.view.arena, sequence.blocks[b]));
    }
  }
}

// Where this step's rows go. Blocks without a place in the cache are taken from `passing`, in the
// order they come.
void Model::State::place_rows(const Geometry& geometry, const LayerGroup& group, GroupStep& at) {
  const std::uint32_t tokens = at.view.tokens_per_block;
  const std::size_t block_bytes =
      std::size_t{group.kv_heads} * at.shape.page_bytes * group.together;
  at.row_blocks.clear();
  std::uint32_t passed = 0;
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const KvSequenceView& sequence = at.view.sequences[s];
    const std::uint32_t begin = (sequence.past + tokens - 1) / tokens;
    const std::uint32_t end = (sequence.past + sequence.row_count) / tokens;  // of whole blocks
    at.row_blocks.push_back({sequence.blocks, begin, passed});
    for (std::uint32_t b = begin; b < end; ++b) passed += sequence.blocks[b] == kNoBlock;
  }
  grow(passing, passed * block_bytes);
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const KvSequenceView& sequence = at.view.sequences[s];
    const RowBlocks& blocks = at.row_blocks[s];
    for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
      const std::uint32_t slot = sequence.past + i, block = slot / tokens;
      const bool passes = sequence.blocks[block] == kNoBlock;
      std::byte* const to =
          passes ? passing.data() +
                       (blocks.scratch_number + block - blocks.scratch_begin) * block_bytes
                 : arena_at(at.view.arena, sequence.blocks[block]);
      at.places[sequence.first_row + i] = {to, slot % tokens, passes};
    }
  }
}

void Model::State::prepare_sealed(const Geometry& geometry, const LayerGroup& group,
                                  GroupStep& at) {
  const PageShape page = geometry.page_shape(group);
  at.rows = geometry.row_place(group.layers[0]).group;
  const LayerGroup& recent = geometry.groups[at.rows];
  const GroupStep& rows = groups[at.rows];
  at.keys = encoded_part(*group.format->keys, Side::keys, page.rows(Side::keys));
  at.values = encoded_part(*group.format->values, Side::values, page.rows(Side::values));
  at.keys.calibration = group.key_calibration;
  at.values.calibration = group.value_calibration;
  at.sealed_shape = {.encoded = at.shape,
                     .rows = rows.shape,
                     .recent_blocks = recent.recent_blocks,
                     .sink_blocks = recent.sink_blocks,
                     .scratch_stride = static_cast<std::uint32_t>(
                         recent.kv_heads * recent.together * rows.shape.page_bytes / kArenaUnit)};
  plan_sealed(at.view, rows.row_blocks, at.sealed_shape, at.sealed_plan);
  const std::uint32_t tokens = at.view.tokens_per_block;
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const KvSequenceView& sequence = at.view.sequences[s];
    for (std::uint32_t b = sequence.past / tokens;
         (b + 1) * tokens <= sequence.past + sequence.row_count; ++b) {
      const std::uint32_t row = std::max(b * tokens, sequence.past) - sequence.past;
      const RowPlace& from = rows.places[sequence.first_row + row];
      at.seals.push_back(
          {from.block, arena_at(at.view.arena, sequence.blocks[b]), from.passing, b * tokens});
    }
  }
}

EncodedPart Model::State::lane_part(EncodedPart part, std::uint32_t layer, std::uint32_t kv_head,
                                    std::uint32_t position) const {
  if (!part.calibration) return part;
  const bool keys = part.side == Side::keys;
  part.lane = (layer * config.kv_heads + kv_head) * 2 + (keys ? 0 : 1);
  if (keys) part.rope = ropes[config.per_layer[layer].rope].view();
  part.position = position;
  return part;
}

void Model::State::look_at_seal(const EncodedPart& part, const std::byte* rows,
                                const std::byte* page, SealError::Side& side) {
  const std::uint32_t tokens = part.rows.tokens, dim = part.rows.dim;
  const std::size_t n = std::size_t{tokens} * dim;
  sealed_rows.resize(n + dim);
  read_rows.resize(n);
  decode_page(part, page, part.position, read_rows.data());
  float* const row = sealed_rows.data() + n;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    const auto at = [&](std::uint32_t d) {
      return part.side == Side::keys ? std::size_t{d} * tokens + t : std::size_t{t} * dim + d;
    };
    for (std::uint32_t d = 0; d < dim; ++d) {
      std::uint16_t bits;
      std::memcpy(&bits, rows + 2 * at(d), 2);
      row[d] = f16_to_f32(bits);
    }
    to_basis(part.codec->basis(part.side), dim, row);
    for (std::uint32_t d = 0; d < dim; ++d) sealed_rows[at(d)] = row[d];
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double lost = double{sealed_rows[i]} - read_rows[i];
    side.error += lost * lost;
    side.power += double{sealed_rows[i]} * sealed_rows[i];
  }
}

SealedStep Model::State::sealed_step(const GroupStep& group) const {
  return {.kv = group.view,
          .shape = group.shape,
          .keys = group.keys,
          .values = group.values,
          .kernels = &encoded,
          .recent_blocks = group.sealed_shape.recent_blocks,
          .sink_blocks = group.sealed_shape.sink_blocks,
          .queries = floats(queries),
          .out = floats(attended_rows),
          .row_stride = std::size_t{config.query_heads} * config.head_dim,
          .partials = floats(partials)};
}

void Model::State::plan_part(const GroupStep& whole, std::span<const RowBlocks> rows,
                             GroupStep& part) {
  part.shape = whole.shape;
  part.sealed = whole.sealed;
  part.plan.partial_count = part.sealed_plan.partial_count = 0;
  part.plan.threads = part.sealed_plan.threads = pool.size();
  if (!part.sealed) return plan_attention(part.view, part.shape, part.plan);
  part.rows = whole.rows;
  part.keys = whole.keys;
  part.values = whole.values;
  part.sealed_shape = whole.sealed_shape;
  plan_sealed(part.view, rows, part.sealed_shape, part.sealed_plan);
}

void Model::State::prepare_dense(const GroupStep& group) {
  dense.view = choosing.dense_view(group.view);
  plan_part(group, groups[group.rows].row_blocks, dense);
}

void Model::State::prepare_tail(const Geometry& geometry, const StepRows& step) {
  const GroupStep& last = step_of(geometry, config.layers - 1);
  tail.shape = last.shape;
  tail_sequences.clear();
  tail.row_blocks.clear();
  tail.plan.partial_count = tail.sealed_plan.partial_count = 0;
  if (step.logit_rows.size() == step.tokens.size()) return;  // decoding: nobody stays behind
  std::uint32_t s = 0;
  for (const std::uint32_t row : step.logit_rows) {  // ascending
    while (row >= last.view.sequences[s].first_row + last.view.sequences[s].row_count) ++s;
    KvSequenceView one = last.view.sequences[s];
    one.past += row - one.first_row;
    one.first_row = row;
    one.row_count = 1;
    tail_sequences.push_back(one);
    if (last.sealed) tail.row_blocks.push_back(groups[last.rows].row_blocks[s]);
  }
  tail.view = last.view;
  tail.view.sequences = tail_sequences.data();
  tail.view.sequence_count = static_cast<std::uint32_t>(tail_sequences.size());
  plan_part(last, tail.row_blocks, tail);
}

}  // namespace quire
