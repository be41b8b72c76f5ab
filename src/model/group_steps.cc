#include "model/group_steps.h"

#include <algorithm>

#include "model/state.h"

namespace quire {

GroupSteps::GroupSteps(const ModelConfig& config, Isa isa, bool narrow, std::uint32_t threads)
    : choosing(config, select_kernels(isa), mass_kernels(isa)),
      config_(config),
      encoded_(encoded_kernels(isa)),
      narrow_(narrow),
      threads_(threads) {}

AttendShape GroupSteps::shape_of(const Geometry& geometry, const LayerGroup& group) const {
  const Attention& attn = config_.per_layer[group.layers[0]].attn;
  const RowType rows = group.format->rows;
  return {.query_heads = attn.query_heads,
          .kv_heads = group.kv_heads,
          .head_dim = group.key_dim,
          .scale = attn.scale,
          .rows = rows,
          .arithmetic =
              narrow_ && rows != RowType::f32 ? AttendArithmetic::narrow : AttendArithmetic::f32,
          .layer_index = 0,
          .page_bytes = geometry.page_bytes(group),
          .key_bytes = geometry.key_bytes(group)};
}

void GroupSteps::prepare(const Geometry& geometry, const StepRows& step) {
  groups.resize(step.groups.size());
  partial_bytes = scratch_bytes = 0;
  std::size_t passing_bytes = 0;
  choosing.clear();
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    const LayerGroup& group = geometry.groups[g];
    GroupStep& at = groups[g];
    at.view = step.groups[g];
    at.streamed = step.cold != nullptr && step.cold->group() == g;
    if (at.streamed) take_table(at);
    if (!step.reads.empty() && group.kind == GroupKind::full && !choosing.active())
      choosing.prepare(geometry, g, step.reads, at.view);
    at.shape = shape_of(geometry, group);
    at.plan.threads = at.sealed_plan.threads = threads_;
    at.sealed = group.sealed();
    at.seals.clear();
    scratch_bytes = std::max(scratch_bytes, attend_scratch_bytes(at.shape));
    at.places.resize(step.tokens.size());
    at.plan.partial_count = at.sealed_plan.partial_count = 0;
    list_past(geometry, group, at, chooses(g));
    if (at.sealed) continue;
    at.row_block_bytes = std::size_t{group.kv_heads} * at.shape.page_bytes * group.together;
    passing_bytes = std::max(passing_bytes, list_row_blocks(at));
    if (at.streamed)
      plan_stream(*step.cold, at);
    else if (group.kind != GroupKind::recent)
      plan_attention(at.view, at.shape, at.plan);
  }
  grow(passing, passing_bytes);
  for (GroupStep& at : groups)
    if (!at.sealed) place_rows(at);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!groups[g].sealed) continue;
    prepare_sealed(geometry, geometry.groups[g], groups[g]);
    if (groups[g].streamed) plan_stream(*step.cold, groups[g]);
    const AttendStep as_rows{groups[g].view, groups[g].shape, nullptr, nullptr, 0, nullptr};
    scratch_bytes = std::max(scratch_bytes, sealed_scratch_bytes(sealed_step(groups[g], as_rows)));
  }
  const auto count = [&](const GroupStep& at) {
    const std::size_t n = std::max(at.plan.partial_count, at.sealed_plan.partial_count) +
                          (at.streamed ? at.streamed_plan.partial_count : 0);
    partial_bytes = std::max(partial_bytes, n * partial_floats(at.shape) * sizeof(float));
  };
  for (const GroupStep& at : groups) count(at);
  if (choosing.active() && choosing.dense(0)) {
    const GroupStep& group = groups[choosing.group()];
    dense.view = choosing.dense_view(group.view);
    plan_part(group, groups[group.rows].row_blocks, dense);
    count(dense);
  }
  prepare_tail(geometry, step);
  count(tail);
}

// The blocks to fetch ahead: those that a layer of the group reads, as many as the last cache
// holds. None with few rows, which are bound by memory throughout, and none if pages are chosen,
// because the choice is not known yet.
void GroupSteps::list_past(const Geometry& geometry, const LayerGroup& group, GroupStep& at,
                           bool chosen) {
  at.past_blocks.clear();
  if (at.places.size() <= kFewRows || group.kind == GroupKind::recent || chosen || at.streamed)
    return;
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

// Rows of blocks that this step fills completely may have no place in the cache. They pass through
// scratch memory; returns its bytes.
std::size_t GroupSteps::list_row_blocks(GroupStep& at) {
  const std::uint32_t tokens = at.view.tokens_per_block;
  at.row_blocks.clear();
  std::uint32_t passed = 0;
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const KvSequenceView& sequence = at.view.sequences[s];
    const std::uint32_t begin = (sequence.past + tokens - 1) / tokens;
    const std::uint32_t end = (sequence.past + sequence.row_count) / tokens;  // of whole blocks
    at.row_blocks.push_back({sequence.blocks, begin, passed});
    for (std::uint32_t b = begin; b < end; ++b) passed += sequence.blocks[b] == kNoBlock;
  }
  return passed * at.row_block_bytes;
}

// A copy of the only sequence's table.
void GroupSteps::take_table(GroupStep& at) const {
  CHECK(at.view.sequence_count == 1 && at.view.window == 0);
  at.sequence = at.view.sequences[0];
  CHECK(at.sequence.lanes == nullptr);
  const std::uint32_t blocks =
      (at.sequence.past + at.sequence.row_count) / at.view.tokens_per_block;
  const bool open = (at.sequence.past + at.sequence.row_count) % at.view.tokens_per_block != 0;
  at.table.assign(at.sequence.blocks, at.sequence.blocks + blocks + (open && !at.sealed));
  at.sequence.blocks = at.table.data();
  at.view.sequences = &at.sequence;
}

// Rows of an exact group read all before them split by split; those of a lossy group what is encoded.
void GroupSteps::plan_stream(const ColdBlocks& cold, GroupStep& at) {
  const std::uint32_t tokens = at.view.tokens_per_block, rows_max = attend_rows_max(at.shape);
  streamed_rows_.clear();
  for (std::uint32_t i = 0; i < at.sequence.row_count; ++i) {
    const std::uint32_t position = at.sequence.past + i;
    if (!at.sealed) {
      streamed_rows_.push_back({0, position + 1, rows_max});
      continue;
    }
    const SealedReach reach = sealed_reach(position, tokens, 0, at.sealed_shape.recent_blocks,
                                           at.sealed_shape.sink_blocks);
    streamed_rows_.push_back(
        {reach.begin, reach.end, std::min(rows_max, tokens - position % tokens)});
  }
  plan_streamed(at.shape,
                {.window_splits = std::max(1u, cold.window() * tokens / kAttendSplit),
                 .cold_end = cold.blocks() * tokens,
                 .first_partial = at.sealed ? at.sealed_plan.partial_count : 0},
                streamed_rows_, at.streamed_plan);
  if (!at.sealed) return;
  for (SealedMerge& m : at.sealed_plan.merges) {
    const StreamedRow& row = streamed_rows_[m.row];
    m.encoded_first = at.streamed_plan.partial_of(m.row, m.kv_head);
    m.encoded_count = row.begin < row.end;
  }
}

// Finds the places of this step's rows.
void GroupSteps::place_rows(GroupStep& at) {
  const std::uint32_t tokens = at.view.tokens_per_block;
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const KvSequenceView& sequence = at.view.sequences[s];
    const RowBlocks& blocks = at.row_blocks[s];
    for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
      const std::uint32_t slot = sequence.past + i, block = slot / tokens;
      const bool passes = sequence.blocks[block] == kNoBlock;
      std::byte* const to =
          passes ? passing.data() +
                       (blocks.scratch_number + block - blocks.scratch_begin) * at.row_block_bytes
                 : arena_at(at.view.arena, sequence.blocks[block]);
      at.places[sequence.first_row + i] = {to, slot % tokens, passes};
    }
  }
}

void GroupSteps::prepare_sealed(const Geometry& geometry, const LayerGroup& group, GroupStep& at) {
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
                         recent.kv_heads * recent.together * rows.shape.page_bytes / kArenaUnit),
                     .rows_only = at.streamed};
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

SealedStep GroupSteps::sealed_step(const GroupStep& group, const AttendStep& as_rows) const {
  return {.kv = as_rows.kv,
          .shape = as_rows.shape,
          .keys = group.keys,
          .values = group.values,
          .kernels = &encoded_,
          .recent_blocks = group.sealed_shape.recent_blocks,
          .sink_blocks = group.sealed_shape.sink_blocks,
          .queries = as_rows.queries,
          .out = as_rows.out,
          .row_stride = as_rows.row_stride,
          .partials = as_rows.partials,
          .sinks = as_rows.sinks};
}

void GroupSteps::plan_part(const GroupStep& whole, std::span<const RowBlocks> rows,
                           GroupStep& part) {
  part.shape = whole.shape;
  part.sealed = whole.sealed;
  part.plan.partial_count = part.sealed_plan.partial_count = 0;
  part.plan.threads = part.sealed_plan.threads = threads_;
  if (!part.sealed) return plan_attention(part.view, part.shape, part.plan);
  part.rows = whole.rows;
  part.keys = whole.keys;
  part.values = whole.values;
  part.sealed_shape = whole.sealed_shape;
  plan_sealed(part.view, rows, part.sealed_shape, part.sealed_plan);
}

void GroupSteps::prepare_tail(const Geometry& geometry, const StepRows& step) {
  const GroupStep& last = of_layer(geometry, config_.layers - 1);
  tail.shape = last.shape;
  tail_sequences_.clear();
  tail.row_blocks.clear();
  tail.plan.partial_count = tail.sealed_plan.partial_count = 0;
  if (step.finished.size() == step.tokens.size() || step.cold) return;  // nobody stays behind
  std::uint32_t s = 0;
  for (const std::uint32_t row : step.finished) {  // ascending
    while (row >= last.view.sequences[s].first_row + last.view.sequences[s].row_count) ++s;
    KvSequenceView one = last.view.sequences[s];
    one.past += row - one.first_row;
    one.first_row = row;
    one.row_count = 1;
    tail_sequences_.push_back(one);
    if (last.sealed) tail.row_blocks.push_back(groups[last.rows].row_blocks[s]);
  }
  tail.view = last.view;
  tail.view.sequences = tail_sequences_.data();
  tail.view.sequence_count = static_cast<std::uint32_t>(tail_sequences_.size());
  plan_part(last, tail.row_blocks, tail);
}

}  // namespace quire
