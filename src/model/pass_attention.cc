// The first half of a layer: queries, keys and values are computed and stored, then rows attend.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "model/broken_rows.h"
#include "model/executor.h"
#include "model/pass.h"

namespace quire {
void Pass::keys_and_values(const Layer& l) {
  const ActivationRows in = (sharing_ == Sharing::few ? own_.hidden : scratch_.hidden).view;
  for (std::uint32_t r = row_phase_.begin; r < row_phase_.end; ++r) {
    if (l.index > 0) {
      const Layer before = layer(l.index - 1);
      absorb(r, before.spec.post_f, before.w.post_f);
    }
    enter(r, r, l.spec.pre_a, l.w.pre_a, in);
  }
  meet_after_rows();
  shrink(l, kQkv, adapter_inputs(), s_.adapters.input_width);
  project_qkv(l, in);
  if (worker_.index == 0 && !step_.gates.empty()) wait_for_gates(l.index);
  // From here on all queries, keys and values of this step are there, and blocks that tiers bring.
  worker_.barrier();
  if (!step_.taps.empty()) tap(l);
  const std::uint32_t group = geometry_.places[l.index].group;
  if (!s_.groups[group].seals.empty()) {
    seal(l);
    worker_.barrier();  // and every block that is full is encoded
  }
  if (step_.sealed && worker_.index == 0) (*step_.sealed)(l.index);
  if (s_.groups.chooses(group)) {
    choose_pages(l);
    worker_.barrier();  // every lane knows what it reads
  }
}

// Waits for blocks of this layer. A nap is short compared with reading a block from a disk.
void Pass::wait_for_gates(std::uint32_t layer) {
  for (std::size_t s = 0; s < step_.gates.size(); ++s) {
    const LayerGate* const gate = step_.gates[s];
    if (gate == nullptr || step_.dropped[s]) continue;
    while (gate->layers.load(std::memory_order_acquire) <= layer) {
      if (SteadyClock().now() >= gate->deadline) {
        step_.dropped[s] = 1;
        break;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

// Computes whole heads, so that norm, rotation and the write to the cache happen while the head is
// in the nearest cache.
void Pass::project_qkv(const Layer& l, const ActivationRows& in) {
  if (l.attn.latent) return project_latent(l, in);
  if (l.attn.norm_of_all) return project_then_norm(l, in);
  const std::uint32_t d = l.attn.key_dim, heads = l.attn.query_heads + 2 * l.attn.kv_heads;
  const Range mine = unit_share(heads, 1);
  for (std::uint32_t head = mine.begin; head < mine.end; ++head) {
    multiply_head(l, head, in, floats(own_.unit) - std::size_t{matrix_rows_.begin} * d, d);
    finish_head(l, head, matrix_rows_, floats(own_.unit), d);
  }
}

// A norm of all heads needs all of them first; then each thread takes rows.
void Pass::project_then_norm(const Layer& l, const ActivationRows& in) {
  const Attention& a = l.attn;
  const std::uint32_t d = a.key_dim, heads = a.query_heads + 2 * a.kv_heads;
  const std::size_t width = a.qkv();
  const Range mine = unit_share(heads, 1);
  for (std::uint32_t head = mine.begin; head < mine.end; ++head)
    multiply_head(l, head, in, floats(scratch_.qkv) + std::size_t{head} * d, width);
  meet_after_columns();
  const Range rows = sharing_ == Sharing::rows ? matrix_rows_ : share(row_count_, 1);
  for (std::uint32_t r = rows.begin; r < rows.end; ++r) {
    float* q = floats(scratch_.qkv) + r * width;
    float* k = q + a.queries();
    normed(a.head_norm, l.w.q_norm, q, a.queries(), q);
    normed(a.head_norm, l.w.k_norm, k, a.keys(), k);
    for (std::uint32_t head = 0; head < heads; ++head)
      finish_head(l, head, {r, r + 1}, q + std::size_t{head} * d, width);
  }
}

// One head of all rows, with bias and adapters, into out[row * stride].
void Pass::multiply_head(const Layer& l, std::uint32_t head, const ActivationRows& in, float* out,
                         std::size_t stride) {
  const std::uint32_t d = l.attn.key_dim;
  const auto part = std::find_if(l.w.qkv.rbegin(), l.w.qkv.rend(),
                                 [&](const ProjectionPart& p) { return p.first <= head * d; });
  const std::uint32_t first = head * d - part->first;
  s_.linear.multiply(part->matrix, in, matrix_rows_.begin, matrix_rows_.end, first, first + d,
                     out - first, stride, &fetch_);
  const Attention& a = l.attn;
  float* const mine = out + std::size_t{matrix_rows_.begin} * stride;
  for (std::uint32_t r = 0; a.qkv_bias && r < matrix_rows_.end - matrix_rows_.begin; ++r)
    s_.vector.add(mine + r * stride, l.w.qkv_bias.data() + std::size_t{head} * d, d);
  if (own_.adapted.empty()) return;
  const bool is_query = head < a.query_heads, is_key = head < a.query_heads + a.kv_heads;
  const Adapted linear = is_query ? Adapted::q : is_key ? Adapted::k : Adapted::v;
  const std::uint32_t before = is_query ? 0 : is_key ? a.query_heads : a.query_heads + a.kv_heads;
  expand(l, kQkv, linear, (head - before) * d, d, mine, stride);
}

// What becomes of a head that has been multiplied: row `rows.begin` is at `first`.
void Pass::finish_head(const Layer& l, std::uint32_t head, Range rows, float* first,
                       std::size_t stride) {
  const Attention& a = l.attn;
  const std::uint32_t d = a.key_dim, width = a.queries();
  const LayerPlace place = geometry_.row_place(l.index);
  const GroupStep& group = s_.groups[place.group];
  const std::uint32_t tokens_per_block = geometry_.tokens_per_block;
  const bool is_query = head < a.query_heads, is_value = head >= a.query_heads + a.kv_heads;
  const std::vector<float>& norm = is_query ? l.w.q_norm : l.w.k_norm;
  const RopeTable& rope = s_.ropes[a.rope];
  const std::uint32_t kv_head = is_query ? 0 : (head - a.query_heads) % a.kv_heads;
  const auto page_of = [&](std::uint32_t index) {
    return (std::size_t{index} * a.kv_heads + kv_head) * group.shape.page_bytes;
  };
  const std::size_t kept_page = page_of(place.index),
                    passing_page = page_of(place.index % geometry_.groups[place.group].together);

  for (std::uint32_t r = rows.begin; r < rows.end; ++r) {
    float* at = first + (r - rows.begin) * stride;
    const RowPlace& row = group.places[r];
    std::byte* const page = row.block + (row.passing ? passing_page : kept_page);
    // A row that is not finite here stays so: rotation does not change that.
    if (!is_query && !step_.broken.empty() && !all_within(at, d, group.shape.rows))
      std::atomic_ref(step_.broken[r]).store(1, std::memory_order_relaxed);
    if (is_value) {
      s_.attend.store_value(group.shape, tokens_per_block, at, row.slot, page);
      continue;
    }
    if (!a.norm_of_all) normed(a.head_norm, norm, at, d, at);
    const std::uint32_t position = step_.positions[r];
    s_.vector.rope(at, 2 * rope.half(), rope.cosines(position), rope.sines(position));
    if (is_query && a.rotated_scale != 1) s_.vector.scale(at, a.rotated_scale, 2 * rope.half());
    if (is_query)
      std::memcpy(floats(scratch_.queries) + std::size_t{r} * width + std::size_t{head} * d, at,
                  d * sizeof(float));
    else
      s_.attend.store_key(group.shape, tokens_per_block, at, row.slot, page);
  }
}

void Pass::seal(const Layer& l) {
  const LayerPlace place = geometry_.places[l.index], rows = geometry_.rows[l.index];
  const GroupStep& to = s_.groups[place.group];
  const AttendShape& from = s_.groups[rows.group].shape;
  const std::uint32_t kv_heads = l.attn.kv_heads;
  const std::uint32_t together = geometry_.groups[place.group].together,
                      member = rows.index % together;
  if (member + 1 < together) return;  // the last of its layers seals a page
  const std::size_t layer_bytes = kv_heads * from.page_bytes;
  const auto count = static_cast<std::uint32_t>(to.seals.size()) * kv_heads;
  for (std::uint32_t i;
       (i = s_.next_seal[l.index].fetch_add(1, std::memory_order_relaxed)) < count;) {
    const GroupStep::Seal& seal = to.seals[i / kv_heads];
    const std::uint32_t head = i % kv_heads;
    const std::byte* row_page =
        seal.rows + (seal.passing ? 0 : rows.index - member) * layer_bytes + head * from.page_bytes;
    std::byte* page =
        seal.block + (std::size_t{place.index} * kv_heads + head) * to.shape.page_bytes;
    EncodedPart keys = s_.lane_part(to.keys, l.index, head, seal.position),
                values = s_.lane_part(to.values, l.index, head, seal.position);
    keys.member = values.member = member;
    keys.member_stride = values.member_stride = layer_bytes;
    s_.encoded.seal(keys, row_page, page);
    s_.encoded.seal(values, row_page + from.key_bytes, page + to.shape.key_bytes);
    if (i > 0 || s_.steps % c_.layers != l.index) continue;
    row_page += member * layer_bytes;
    s_.look_at_seal(keys, row_page, page, s_.seal_error.keys);
    s_.look_at_seal(values, row_page + from.key_bytes, page + to.shape.key_bytes,
                    s_.seal_error.values);
    ++s_.seal_error.pages;
  }
}

void Pass::choose_pages(const Layer& l) {
  const LayerPlace rows = geometry_.row_place(l.index);
  const GroupStep& written = s_.groups[rows.group];
  const ChoosingLayer at{.layer = l.index,
                         .index = geometry_.places[l.index].index,
                         .places = written.places.data(),
                         .row_index = rows.index,
                         .row_page_bytes = written.shape.page_bytes,
                         .queries = floats(scratch_.queries)};
  Choosing& choosing = s_.groups.choosing;
  for (std::uint32_t task = worker_.index; task < choosing.tasks(); task += worker_.count)
    choosing.run(at, task, own_.select);
}

void Pass::tap(const Layer& l) {
  const LayerPlace place = geometry_.places[l.index];
  const KvView& view = step_.groups[place.group];
  const std::size_t width = l.attn.queries();
  for (std::uint32_t s = 0; s < view.sequence_count; ++s) {
    Tap* const tap = step_.taps[s];
    if (tap == nullptr || tap->group_ != place.group) continue;
    const KvSequenceView& sequence = view.sequences[s];
    for (std::uint32_t i = worker_.index; i < sequence.row_count; i += worker_.count) {
      const std::uint32_t at = sequence.past + i - tap->first_;
      if (sequence.past + i < tap->first_ || at >= tap->count_) continue;
      std::memcpy(tap->queries_.data() + (std::size_t{place.index} * tap->count_ + at) * width,
                  floats(scratch_.queries) + (sequence.first_row + i) * width,
                  width * sizeof(float));
    }
    if (tap->moments_first_ < tap->moments_end_) tap_moments(l, sequence, *tap);
  }
}

// Undoes the rotation of queries for a tap. Each thread takes heads of its own.
void Pass::tap_moments(const Layer& l, const KvSequenceView& sequence, Tap& tap) {
  const std::uint32_t d = l.attn.key_dim, index = geometry_.places[l.index].index;
  const RopeTable& rope = s_.ropes[l.attn.rope];
  std::vector<float>& rows = own_.plain_queries;
  rows.resize(std::size_t{Tap::kRun} * d);
  std::vector<float> sines(rope.half());
  const std::uint32_t begin = std::max(sequence.past, tap.moments_first_);
  const std::uint32_t end = std::min(sequence.past + sequence.row_count, tap.moments_end_);
  for (std::uint32_t head = worker_.index; head < l.attn.query_heads; head += worker_.count)
    for (std::uint32_t token = begin; token < end;) {
      const std::uint32_t stop = std::min(end, (token / Tap::kRun + 1) * Tap::kRun);
      for (std::uint32_t t = token; t < stop; ++t) {
        const std::uint32_t row = sequence.first_row + t - sequence.past;
        const std::uint32_t position = step_.positions[row];
        float* to = rows.data() + std::size_t{t - token} * d;
        std::memcpy(to,
                    floats(scratch_.queries) + (std::size_t{row} * l.attn.query_heads + head) * d,
                    d * sizeof(float));
        std::transform(rope.sines(position), rope.sines(position) + rope.half(), sines.begin(),
                       [](float x) { return -x; });
        s_.vector.rope(to, 2 * rope.half(), rope.cosines(position), sines.data());
      }
      Tap::Moments& m = tap.moments(index, head);
      s_.mass.moments(rows.data(), d, stop - token, d, m.run_sums.data(), m.run_products.data());
      m.count += stop - token;
      if (stop % Tap::kRun == 0) Tap::close_run(m);
      token = stop;
    }
}

void Pass::attention(const Layer& l) {
  attend(l);
  worker_.barrier();  // every row has been attended
  fetch_for(l.index + 1);

  const std::uint32_t width = l.attn.attended();
  const bool own = sharing_ == Sharing::few && !l.attn.latent;
  const ActivationRows out = (own ? own_.attended : scratch_.attended).of(width);
  if (l.attn.latent) {
    expand_latent(l, out);
  } else {
    for (std::uint32_t r = row_phase_.begin; r < row_phase_.end; ++r) {
      const float* const row = floats(scratch_.attended_rows) + std::size_t{step_row(r)} * width;
      encode(row, r, 0, width, out);
      if (!own_.adapted.empty()) keep(r, row, width);
    }
    meet_after_rows();
    shrink(l, kOut, adapter_inputs(), s_.adapters.input_width);
  }
  project(l, l.w.out, l.w.out_bias, out, Adapted::out);
  meet_after_columns();
}

void Pass::fetch_for(std::uint32_t layer) {
  fetch_ = {};  // what is left of the layer before has been read
  if (layer >= c_.layers) return;
  const LayerPlace place = geometry_.places[layer];
  const GroupStep& group = s_.groups[place.group];
  const std::size_t bytes = c_.per_layer[layer].attn.kv_heads * group.shape.page_bytes;
  fetch_ = {.blocks = group.past_blocks.data(),
            .count = group.past_blocks.size(),
            .at = worker_.index,
            .stride = worker_.count,
            .offset = place.index * bytes,
            .bytes = bytes};
}

// Attention over rows: of an exact group, or of the rows beside a lossy group.
AttendStep Pass::attend_step(const Layer& l, const KvView& view, const AttendShape& shape,
                             std::uint32_t index) const {
  AttendStep step{.kv = view,
                  .shape = shape,
                  .queries = floats(scratch_.queries),
                  .out = floats(scratch_.attended_rows),
                  .row_stride = l.attn.queries(),
                  .partials = floats(scratch_.partials),
                  .sinks = l.attn.sinks ? l.w.sinks.data() : nullptr};
  step.shape.layer_index = index;
  step.shape.scale = l.attn.scale;
  step.shape.softcap = l.attn.softcap;
  return step;
}

void Pass::attend(const Layer& l) {
  const GroupStep& group = is_tail_ ? s_.groups.tail : s_.groups.of_layer(geometry_, l.index);
  const AttendStep step = attend_step(l, group.view, group.shape, geometry_.places[l.index].index);
  if (group.streamed && (!attend_streamed(l, step) || !group.sealed)) return;
  if (group.sealed) return attend_sealed(l, group, step);
  const AttendPlan& plan = group.plan;
  for (std::uint32_t i;
       (i = s_.next_task[l.index].fetch_add(1, std::memory_order_relaxed)) < plan.tasks.size();)
    s_.attend.attend(step, plan.tasks[i], own_.attend.data());
  if (plan.merges.empty()) return;
  worker_.barrier();
  const Range mine = share(static_cast<std::uint32_t>(plan.merges.size()), 1);
  for (std::uint32_t i = mine.begin; i < mine.end; ++i) s_.attend.merge(step, plan.merges[i]);
}

SealedStep Pass::sealed_step(const Layer& l, const GroupStep& group,
                             const AttendStep& as_rows) const {
  SealedStep step = s_.groups.sealed_step(group, as_rows);
  step.keys = s_.lane_part(step.keys, l.index, 0, 0);
  step.values = s_.lane_part(step.values, l.index, 0, 0);
  step.keys.member = step.values.member =
      geometry_.rows[l.index].index % geometry_.groups[geometry_.places[l.index].group].together;
  return step;
}

// Attention of a lossy group: encoded blocks first, because they take longest, then rows.
void Pass::attend_sealed(const Layer& l, const GroupStep& group, const AttendStep& as_rows) {
  const LayerPlace row_place = geometry_.rows[l.index];
  const SealedPlan& plan = group.sealed_plan;
  const SealedStep step = sealed_step(l, group, as_rows);
  const std::uint32_t member = step.keys.member;
  AttendStep kept = attend_step(l, plan.kept.view, group.sealed_shape.rows, row_place.index),
             passing = attend_step(l, plan.passing.view, group.sealed_shape.rows, member);
  kept.kv.arena = group.view.arena;
  passing.kv.arena = s_.groups.passing.data();
  for (;;) {
    std::size_t i = s_.next_task[l.index].fetch_add(1, std::memory_order_relaxed);
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
  worker_.barrier();
  const Range mine = share(static_cast<std::uint32_t>(plan.merges.size()), 1);
  for (std::uint32_t i = mine.begin; i < mine.end; ++i)
    s_.attend.merge_sealed(step, plan.merges[i]);
}

}  // namespace quire
