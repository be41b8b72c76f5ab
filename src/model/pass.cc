#include "model/pass.h"

#include <algorithm>
#include <cstring>

namespace quire {
namespace {

// From this many rows per thread on, threads take rows instead of columns.
constexpr std::uint32_t kRowsPerThread = 12;

}  // namespace

Pass::Sharing Pass::sharing_for(std::uint32_t rows, std::uint32_t threads) {
  if (rows <= kFewRows) return Sharing::few;
  return rows >= kRowsPerThread * threads ? Sharing::rows : Sharing::columns;
}

Pass::Pass(Model::State& state, const Geometry& geometry, const StepRows& step, float* logits,
           ThreadPool::Lane lane, bool is_tail)
    : s_(state),
      c_(state.config),
      geometry_(geometry),
      step_(step),
      logits_(logits),
      lane_(lane),
      own_(state.lanes[lane.index]),
      is_tail_(is_tail),
      row_count_(static_cast<std::uint32_t>(is_tail ? step.logit_rows.size() : step.tokens.size())),
      sharing_(sharing_for(row_count_, lane.count)),
      row_phase_(sharing_ == Sharing::few ? Range{0, row_count_}
                                          : share(row_count_, sharing_ == Sharing::rows ? 8 : 1)),
      matrix_rows_(sharing_ == Sharing::rows ? row_phase_ : Range{0, row_count_}) {}

Pass::Range Pass::share(std::uint32_t count, std::uint32_t multiple) const {
  const std::uint64_t units = (count + multiple - 1) / multiple;
  const auto at = [&](std::uint64_t i) {
    return std::min(count, static_cast<std::uint32_t>(units * i / lane_.count) * multiple);
  };
  return {at(lane_.index), at(lane_.index + 1)};
}

Pass::Range Pass::unit_share(std::uint32_t count, std::uint32_t multiple) const {
  return sharing_ == Sharing::rows ? Range{0, count} : share(count, multiple);
}

void Pass::meet_after_rows() const {
  if (sharing_ == Sharing::columns) lane_.barrier();
}

void Pass::meet_after_columns() const {
  if (sharing_ != Sharing::rows) lane_.barrier();
}

void Pass::run() {
  embed();
  const std::uint32_t last = std::min(c_.layers - 1, step_.last_layer);
  for (std::uint32_t l = 0; l < last; ++l) {
    keys_and_values(l);
    attention(l);
    feed_forward(l);
  }
  keys_and_values(last);
  if (last + 1 < c_.layers) return;
  if (sharing_ != Sharing::few && step_.logit_rows.size() < row_count_) {
    if (!step_.logit_rows.empty()) finish_tail(last);
  } else {
    finish(last);
  }
}

void Pass::finish_tail(std::uint32_t last) {
  Pass tail(s_, geometry_, step_, logits_, lane_, true);
  for (std::uint32_t r = tail.row_phase_.begin; r < tail.row_phase_.end; ++r)
    std::memcpy(tail.x_row(r), x_row(step_.logit_rows[r]), c_.hidden * sizeof(float));
  tail.finish(last);
}

void Pass::finish(std::uint32_t last) {
  attention(last);
  feed_forward(last);
  logits();
}

float* Pass::x_row(std::uint32_t row) const {
  float* base = sharing_ == Sharing::few ? own_.x.data() : floats(is_tail_ ? s_.tail_x : s_.x);
  return base + std::size_t{row} * c_.hidden;
}

void Pass::embed() {
  for (std::uint32_t r = row_phase_.begin; r < row_phase_.end; ++r) {
    const TensorView& e = s_.weights.embedding;
    dequantize_row(e.type, e.row(step_.tokens[r]), c_.hidden, x_row(r));
    if (c_.embedding_scale != 1) s_.vector.scale(x_row(r), c_.embedding_scale, c_.hidden);
  }
}

// Adds the last projection's output to the residual stream.
void Pass::absorb(std::uint32_t row, const std::vector<float>& post_norm) {
  const float* y = floats(s_.y) + std::size_t{row} * c_.hidden;
  if (!post_norm.empty()) {
    s_.vector.rms_norm(y, post_norm.data(), c_.norm_epsilon, c_.hidden, own_.row.data());
    y = own_.row.data();
  }
  s_.vector.add(x_row(row), y, c_.hidden);
}

// Normalizes a row of the residual stream into row `to_row` of a matrix's input.
void Pass::enter(std::uint32_t row, std::uint32_t to_row, const std::vector<float>& norm,
                 const ActivationRows& to) {
  s_.vector.rms_norm(x_row(row), norm.data(), c_.norm_epsilon, c_.hidden, own_.row.data());
  encode(own_.row.data(), to_row, 0, c_.hidden, to);
}

void Pass::encode(const float* from, std::uint32_t row, std::uint32_t first, std::uint32_t count,
                  const ActivationRows& to) const {
  if (s_.quantized) s_.linear.quantize(from, row, first, count, to);
  if (s_.plain)
    std::memcpy(to.plain + std::size_t{row} * to.inputs + first, from, count * sizeof(float));
}

void Pass::keys_and_values(std::uint32_t layer) {
  const LayerWeights& w = s_.weights.layers[layer];
  const ActivationRows& in = (sharing_ == Sharing::few ? own_.hidden : s_.hidden).view;
  for (std::uint32_t r = row_phase_.begin; r < row_phase_.end; ++r) {
    if (layer > 0) absorb(r, s_.weights.layers[layer - 1].post_feed_forward_norm);
    enter(r, r, w.attention_norm, in);
  }
  meet_after_rows();
  project_qkv(layer, in);
  lane_.barrier();  // every query is there, every key and value of this step is in its page
  if (!step_.taps.empty()) tap(layer);
  if (!s_.groups[geometry_.places[layer].group].seals.empty()) {
    seal(layer);
    lane_.barrier();  // and every block that is full is encoded
  }
  if (s_.choosing.active() && s_.choosing.group() == geometry_.places[layer].group) {
    choose_pages(layer);
    lane_.barrier();  // every lane knows what it reads
  }
}

void Pass::choose_pages(std::uint32_t layer) {
  const LayerPlace rows = geometry_.row_place(layer);
  const GroupStep& written = s_.groups[rows.group];
  const ChoosingLayer at{.layer = layer,
                         .index = geometry_.places[layer].index,
                         .places = written.places.data(),
                         .row_index = rows.index,
                         .row_page_bytes = written.shape.page_bytes,
                         .queries = floats(s_.queries)};
  for (std::uint32_t task = lane_.index; task < s_.choosing.tasks(); task += lane_.count)
    s_.choosing.run(at, task, own_.select);
}

void Pass::tap(std::uint32_t layer) {
  const LayerPlace place = geometry_.places[layer];
  const KvView& view = step_.groups[place.group];
  const std::size_t width = std::size_t{c_.query_heads} * c_.head_dim;
  for (std::uint32_t s = 0; s < view.sequence_count; ++s) {
    Tap* const tap = step_.taps[s];
    if (tap == nullptr || tap->group_ != place.group) continue;
    const KvSequenceView& sequence = view.sequences[s];
    for (std::uint32_t i = lane_.index; i < sequence.row_count; i += lane_.count) {
      const std::uint32_t at = sequence.past + i - tap->first_;
      if (sequence.past + i < tap->first_ || at >= tap->count_) continue;
      std::memcpy(tap->queries_.data() + (std::size_t{place.index} * tap->count_ + at) * width,
                  floats(s_.queries) + (sequence.first_row + i) * width, width * sizeof(float));
    }
    if (tap->moments_first_ < tap->moments_end_) tap_moments(place.index, sequence, *tap);
  }
}

// Queries turned back to where they were before rotation; each thread takes heads of its own.
void Pass::tap_moments(std::uint32_t layer, const KvSequenceView& sequence, Tap& tap) {
  const std::uint32_t d = c_.head_dim;
  const RopeTable& rope = s_.ropes[c_.per_layer[geometry_.groups[tap.group_].layers[layer]].rope];
  std::vector<float>& rows = own_.plain_queries;
  rows.resize(std::size_t{Tap::kRun} * d);
  std::vector<float> sines(rope.half());
  const std::uint32_t begin = std::max(sequence.past, tap.moments_first_);
  const std::uint32_t end = std::min(sequence.past + sequence.row_count, tap.moments_end_);
  for (std::uint32_t head = lane_.index; head < c_.query_heads; head += lane_.count)
    for (std::uint32_t token = begin; token < end;) {
      const std::uint32_t stop = std::min(end, (token / Tap::kRun + 1) * Tap::kRun);
      for (std::uint32_t t = token; t < stop; ++t) {
        const std::uint32_t row = sequence.first_row + t - sequence.past;
        const std::uint32_t position = step_.positions[row];
        float* to = rows.data() + std::size_t{t - token} * d;
        std::memcpy(to, floats(s_.queries) + (std::size_t{row} * c_.query_heads + head) * d,
                    d * sizeof(float));
        std::transform(rope.sines(position), rope.sines(position) + rope.half(), sines.begin(),
                       [](float x) { return -x; });
        s_.vector.rope(to, 2 * rope.half(), rope.cosines(position), sines.data());
      }
      Tap::Moments& m = tap.moments(layer, head);
      s_.mass.moments(rows.data(), d, stop - token, d, m.run_sums.data(), m.run_products.data());
      m.count += stop - token;
      if (stop % Tap::kRun == 0) Tap::close_run(m);
      token = stop;
    }
}

void Pass::seal(std::uint32_t layer) {
  const LayerPlace place = geometry_.places[layer], rows = geometry_.rows[layer];
  const GroupStep& to = s_.groups[place.group];
  const AttendShape& from = s_.groups[rows.group].shape;
  const std::uint32_t together = geometry_.groups[place.group].together,
                      member = rows.index % together;
  if (member + 1 < together) return;  // the last of its layers seals a page
  const std::size_t layer_bytes = c_.kv_heads * from.page_bytes;
  const auto count = static_cast<std::uint32_t>(to.seals.size()) * c_.kv_heads;
  for (std::uint32_t i;
       (i = s_.next_seal[layer].fetch_add(1, std::memory_order_relaxed)) < count;) {
    const GroupStep::Seal& seal = to.seals[i / c_.kv_heads];
    const std::uint32_t head = i % c_.kv_heads;
    const std::byte* row_page =
        seal.rows + (seal.passing ? 0 : rows.index - member) * layer_bytes + head * from.page_bytes;
    std::byte* page =
        seal.block + (std::size_t{place.index} * c_.kv_heads + head) * to.shape.page_bytes;
    EncodedPart keys = s_.lane_part(to.keys, layer, head, seal.position),
                values = s_.lane_part(to.values, layer, head, seal.position);
    keys.member = values.member = member;
    keys.member_stride = values.member_stride = layer_bytes;
    s_.encoded.seal(keys, row_page, page);
    s_.encoded.seal(values, row_page + from.key_bytes, page + to.shape.key_bytes);
    if (i > 0 || s_.steps % c_.layers != layer) continue;
    row_page += member * layer_bytes;
    s_.look_at_seal(keys, row_page, page, s_.seal_error.keys);
    s_.look_at_seal(values, row_page + from.key_bytes, page + to.shape.key_bytes,
                    s_.seal_error.values);
    ++s_.seal_error.pages;
  }
}

void Pass::attention(std::uint32_t layer) {
  const LayerWeights& w = s_.weights.layers[layer];
  attend(layer);
  lane_.barrier();  // every row has been attended
  fetch_for(layer + 1);

  const ActivationRows& out = (sharing_ == Sharing::few ? own_.attended : s_.attended).view;
  const std::uint32_t width = c_.query_heads * c_.head_dim;
  for (std::uint32_t r = row_phase_.begin; r < row_phase_.end; ++r)
    encode(floats(s_.attended_rows) + std::size_t{step_row(r)} * width, r, 0, width, out);
  meet_after_rows();
  project(w.out, out);
  meet_after_columns();
}

void Pass::fetch_for(std::uint32_t layer) {
  fetch_ = {};  // what is left of the layer before has been read
  if (layer >= c_.layers) return;
  const LayerPlace place = geometry_.places[layer];
  const GroupStep& group = s_.groups[place.group];
  const std::size_t bytes = c_.kv_heads * group.shape.page_bytes;
  fetch_ = {.blocks = group.past_blocks.data(),
            .count = group.past_blocks.size(),
            .at = lane_.index,
            .stride = lane_.count,
            .offset = place.index * bytes,
            .bytes = bytes};
}

// Computes whole heads, so that norm, rotation and the write to the cache happen while the head is
// in the nearest cache.
void Pass::project_qkv(std::uint32_t layer, const ActivationRows& in) {
  const LayerWeights& w = s_.weights.layers[layer];
  const std::uint32_t d = c_.head_dim, heads = c_.query_heads + 2 * c_.kv_heads;
  const Range mine = unit_share(heads, 1);
  for (std::uint32_t head = mine.begin; head < mine.end; ++head) {
    const auto part = std::find_if(w.qkv.rbegin(), w.qkv.rend(),
                                   [&](const ProjectionPart& p) { return p.first <= head * d; });
    const std::uint32_t first = head * d - part->first;
    float* out = floats(own_.unit) - std::size_t{matrix_rows_.begin} * d - first;
    s_.linear.multiply(part->matrix, in, matrix_rows_.begin, matrix_rows_.end, first, first + d,
                       out, d, &fetch_);
    finish_head(layer, head, matrix_rows_);
  }
}

void Pass::finish_head(std::uint32_t layer, std::uint32_t head, Range rows) {
  const LayerWeights& w = s_.weights.layers[layer];
  const std::uint32_t d = c_.head_dim, width = c_.query_heads * d;
  const LayerPlace place = geometry_.row_place(layer);
  GroupStep& group = s_.groups[place.group];
  const std::uint32_t tokens_per_block = geometry_.tokens_per_block;
  const bool is_query = head < c_.query_heads, is_value = head >= c_.query_heads + c_.kv_heads;
  const std::vector<float>& norm = is_query ? w.q_norm : w.k_norm;
  const RopeTable& rope = s_.ropes[c_.per_layer[layer].rope];
  const std::uint32_t kv_head = is_query ? 0 : (head - c_.query_heads) % c_.kv_heads;
  const auto page_of = [&](std::uint32_t index) {
    return (std::size_t{index} * c_.kv_heads + kv_head) * group.shape.page_bytes;
  };
  const std::size_t kept_page = page_of(place.index),
                    passing_page = page_of(place.index % geometry_.groups[place.group].together);

  for (std::uint32_t r = rows.begin; r < rows.end; ++r) {
    float* at = floats(own_.unit) + std::size_t{r - rows.begin} * d;
    if (!w.qkv_bias.empty()) s_.vector.add(at, w.qkv_bias.data() + std::size_t{head} * d, d);
    const RowPlace& row = group.places[r];
    std::byte* const page = row.block + (row.passing ? passing_page : kept_page);
    if (is_value) {
      s_.attend.store_value(group.shape, tokens_per_block, at, row.slot, page);
      continue;
    }
    if (!norm.empty()) s_.vector.rms_norm(at, norm.data(), c_.norm_epsilon, d, at);
    const std::uint32_t position = step_.positions[r];
    s_.vector.rope(at, 2 * rope.half(), rope.cosines(position), rope.sines(position));
    if (is_query)
      std::memcpy(floats(s_.queries) + std::size_t{r} * width + std::size_t{head} * d, at,
                  d * sizeof(float));
    else
      s_.attend.store_key(group.shape, tokens_per_block, at, row.slot, page);
  }
}

void Pass::attend(std::uint32_t layer) {
  const LayerPlace place = geometry_.places[layer];
  const GroupStep& group = is_tail_ ? s_.tail : s_.step_of(geometry_, layer);
  if (group.sealed) return attend_sealed(layer);
  AttendStep step{.kv = group.view,
                  .shape = group.shape,
                  .queries = floats(s_.queries),
                  .out = floats(s_.attended_rows),
                  .row_stride = std::size_t{c_.query_heads} * c_.head_dim,
                  .partials = floats(s_.partials)};
  step.shape.layer_index = place.index;
  const AttendPlan& plan = group.plan;
  for (std::uint32_t i;
       (i = s_.next_task[layer].fetch_add(1, std::memory_order_relaxed)) < plan.tasks.size();)
    s_.attend.attend(step, plan.tasks[i], own_.attend.data());
  if (plan.merges.empty()) return;
  lane_.barrier();
  const Range mine = share(static_cast<std::uint32_t>(plan.merges.size()), 1);
  for (std::uint32_t i = mine.begin; i < mine.end; ++i) s_.attend.merge(step, plan.merges[i]);
}

// Encoded blocks first, they take longest; then the rows that are not.
void Pass::attend_sealed(std::uint32_t layer) {
  const LayerPlace place = geometry_.places[layer], row_place = geometry_.rows[layer];
  const GroupStep& group = is_tail_ ? s_.tail : s_.step_of(geometry_, layer);
  const SealedPlan& plan = group.sealed_plan;
  SealedStep step = s_.sealed_step(group);
  step.shape.layer_index = place.index;
  step.keys = s_.lane_part(step.keys, layer, 0, 0);
  step.values = s_.lane_part(step.values, layer, 0, 0);
  const std::uint32_t member = row_place.index % geometry_.groups[place.group].together;
  step.keys.member = step.values.member = member;
  const auto row_step = [&](const SealedPlan::Rows& rows, std::byte* arena, std::uint32_t index) {
    AttendStep made{.kv = rows.view,
                    .shape = group.sealed_shape.rows,
                    .queries = step.queries,
                    .out = step.out,
                    .row_stride = step.row_stride,
                    .partials = step.partials};
    made.kv.arena = arena;
    made.shape.layer_index = index;
    return made;
  };
  const AttendStep kept = row_step(plan.kept, group.view.arena, row_place.index);
  const AttendStep passing = row_step(plan.passing, s_.passing.data(), member);
  for (;;) {
    std::size_t i = s_.next_task[layer].fetch_add(1, std::memory_order_relaxed);
    if (i < plan.encoded.size()) {
      s_.attend.attend_sealed(step, plan.encoded[i], own_.attend.data());
      continue;
    }
    i -= plan.encoded.size();
    if (i < plan.kept.tasks.size()) {
      s_.attend.attend(kept, plan.kept.tasks[i], own_.attend.data());
      continue;
    }
    i -= plan.kept.tasks.size();
    if (i >= plan.passing.tasks.size()) break;
    s_.attend.attend(passing, plan.passing.tasks[i], own_.attend.data());
  }
  lane_.barrier();
  const Range mine = share(static_cast<std::uint32_t>(plan.merges.size()), 1);
  for (std::uint32_t i = mine.begin; i < mine.end; ++i)
    s_.attend.merge_sealed(step, plan.merges[i]);
}

// The last one goes straight into the logits, so its activations have 16 bits: that takes the mean
// KL to fp32 from 0.0034 to 0.0028 (SmolLM2) for 2.5 % more multiplications.
void Pass::feed_forward(std::uint32_t layer) {
  const LayerWeights& w = s_.weights.layers[layer];
  const Site& site = sharing_ == Sharing::few ? own_.hidden : s_.hidden;
  const bool fine = layer + 1 == c_.layers;
  const ActivationRows& in = fine ? site.fine : site.view;
  const ActivationRows& inner = fine ? s_.inner.fine : s_.inner.view;
  for (std::uint32_t r = row_phase_.begin; r < row_phase_.end; ++r) {
    absorb(r, w.post_attention_norm);
    enter(r, r, w.feed_forward_norm, in);
  }
  meet_after_rows();
  const Range mine = unit_share(c_.feed_forward, kGateUpUnit);
  for (std::uint32_t u = mine.begin; u < mine.end; u += kGateUpUnit)
    multiply_units(w, {u, std::min(mine.end, u + kGateUpUnit)}, in, inner);
  meet_after_columns();
  project(w.down, inner);
  meet_after_columns();
}

// Gate and up of a few inner units, their product, and its encoding for the down projection.
void Pass::multiply_units(const LayerWeights& w, Range units, const ActivationRows& in,
                          const ActivationRows& inner) {
  constexpr std::uint32_t kStride = 2 * kGateUpUnit;
  const std::uint32_t count = units.end - units.begin;
  const std::size_t skipped_rows = std::size_t{matrix_rows_.begin} * kStride;
  const auto multiply = [&](const PackedMatrix& m, std::uint32_t first, std::uint32_t end,
                            std::uint32_t at) {
    s_.linear.multiply(m, in, matrix_rows_.begin, matrix_rows_.end, first, end,
                       floats(own_.unit) + at - skipped_rows - first, kStride, &fetch_);
  };
  if (w.gate_up_interleaved) {
    multiply(w.gate_up, 2 * units.begin, 2 * units.end, 0);
  } else {
    multiply(w.gate, units.begin, units.end, 0);
    multiply(w.up, units.begin, units.end, kGateUpUnit);
  }
  const auto product = c_.activation == Activation::silu ? s_.vector.silu_mul : s_.vector.gelu_mul;
  for (std::uint32_t r = matrix_rows_.begin; r < matrix_rows_.end; ++r) {
    float* at = floats(own_.unit) + std::size_t{r - matrix_rows_.begin} * kStride;
    product(at, at + kGateUpUnit, count, at);
    encode(at, r, units.begin, count, inner);
  }
}

// A projection back to the width of the residual stream, into y.
void Pass::project(const PackedMatrix& w, const ActivationRows& in) {
  const Range mine = unit_share(w.padded_outputs(), kLinearLanes);
  if (mine.begin < mine.end)
    s_.linear.multiply(w, in, matrix_rows_.begin, matrix_rows_.end, mine.begin, mine.end,
                       floats(s_.y), c_.hidden, &fetch_);
}

void Pass::logits() {
  const auto wanted = static_cast<std::uint32_t>(step_.logit_rows.size());
  const Range mine = sharing_ == Sharing::few ? share(wanted, 1) : Range{0, wanted};
  for (std::uint32_t i = mine.begin; i < mine.end; ++i) {
    const std::uint32_t r = is_tail_ ? i : step_.logit_rows[i];
    if (r < row_phase_.begin || r >= row_phase_.end) continue;
    absorb(r, s_.weights.layers.back().post_feed_forward_norm);
    enter(r, i, s_.weights.output_norm, s_.head.view);
  }
  lane_.barrier();
  const PackedMatrix& head = s_.weights.head;
  const Range columns = share(head.padded_outputs(), kLinearLanes);
  if (wanted == 0 || columns.begin == columns.end) return;
  s_.linear.multiply(head, s_.head.view, 0, wanted, columns.begin, columns.end, logits_,
                     c_.vocabulary, nullptr);
  if (c_.logit_softcap == 0) return;
  const std::uint32_t end = std::min(columns.end, c_.vocabulary);
  for (std::uint32_t i = 0; i < wanted; ++i)
    s_.vector.softcap(logits_ + std::size_t{i} * c_.vocabulary + columns.begin, c_.logit_softcap,
                      end - columns.begin);
}

}  // namespace quire
