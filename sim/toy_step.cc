#include "sim/toy_step.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "kernels/sealed.h"

namespace quire {
namespace {

// A number in [-1, 1) that depends on all of these.
float toy_number(std::uint64_t state, std::uint32_t layer, std::uint32_t kind, std::uint32_t head,
                 std::uint32_t d) {
  const std::uint64_t bits = mix64(state ^ (std::uint64_t{layer} << 48 | std::uint64_t{kind} << 40 |
                                            std::uint64_t{head} << 24 | d));
  return static_cast<float>(static_cast<std::int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
}

enum Kind : std::uint32_t { kKey, kValue, kQuery, kState };

}  // namespace

ToyStep::ToyStep(const ModelConfig& config, ManualClock& clock, PageNumbers& pages)
    : config_(config),
      clock_(clock),
      pages_(pages),
      store_(attend_kernels(best_isa())),
      encoded_(encoded_kernels(best_isa())),
      mass_(mass_kernels(best_isa())),
      choosing_(config, select_kernels(best_isa()), mass_) {}

std::span<const std::uint64_t> ToyStep::run(const StepPlan& plan) {
  plan_ = &plan;
  geometry_ = plan.geometry;
  states_.clear();
  for (std::size_t row = 0; row < plan.tokens.size(); ++row)
    states_.push_back(mix64(plan.tokens[row] ^ mix64(plan.positions[row] + 1)));
  dropped_.assign(plan.cold ? 1 : plan.gates.size(), 0);
  cold_.clear();
  if (plan.cold) plan.cold->begin(attended_layers(plan));
  std::vector<KvView> views(plan.groups.begin(), plan.groups.end());
  choosing_.clear();
  for (std::uint32_t g = 0; g < views.size() && !plan.reads.empty(); ++g)
    if (geometry_->groups[g].kind == GroupKind::full && !choosing_.active())
      choosing_.prepare(*geometry_, g, plan.reads, views[g]);
  const std::uint32_t last = std::min(config_.layers - 1, plan.last_layer);
  for (std::uint32_t l = 0; l <= last; ++l) {
    const LayerPlace place = geometry_->places[l], rows = geometry_->row_place(l);
    Layer at{l,
             place,
             rows,
             &geometry_->groups[place.group],
             &geometry_->groups[rows.group],
             views[place.group],
             views[rows.group]};
    const bool chooses = choosing_.active() && choosing_.group() == place.group;
    if (chooses && choosing_.dense(l)) at.view = choosing_.dense_view(at.view);
    open_gates(l);
    store_rows(at);
    if (!plan.taps.empty() || chooses) make_queries(at);
    if (!plan.taps.empty()) fill_taps(at);
    if (at.group->sealed()) seal(at);
    if (plan.sealed) (*plan.sealed)(l);
    if (chooses) choose(at);
    if (l == last && l + 1 < config_.layers) break;  // nobody asks what these layers read
    if (plan.cold && plan.cold->group() == place.group) bring(at);
    attend(at);
  }
  if (last + 1 == config_.layers) keep_states();
  return states_;
}

// What taps want of the last states: numbers that depend on all that a row has read.
void ToyStep::keep_states() {
  const KvView& view = plan_->groups[0];
  for (std::uint32_t s = 0; s < view.sequence_count && !plan_->taps.empty(); ++s) {
    Tap* const tap = plan_->taps[s];
    const KvSequenceView& v = view.sequences[s];
    for (std::uint32_t i = 0; tap != nullptr && tap->wants_states() && i < v.row_count; ++i)
      if (float* const to = tap->state(v.past + i))
        for (std::uint32_t d = 0; d < config_.hidden; ++d)
          to[d] = toy_number(states_[v.first_row + i], config_.layers, kState, 0, d);
  }
}

// Waits on the virtual clock until the layer's keys and values have arrived, or for the deadline.
void ToyStep::open_gates(std::uint32_t layer) {
  for (std::size_t s = 0; s < plan_->gates.size(); ++s) {
    const LayerGate* const gate = plan_->gates[s];
    if (gate == nullptr || dropped_[s]) continue;
    while (gate->layers.load() <= layer && clock_.now() < gate->deadline)
      clock_.advance(std::min<Nanoseconds>(100'000, gate->deadline - clock_.now()));
    dropped_[s] = gate->layers.load() <= layer;
  }
}

std::uint32_t ToyStep::attended_layers(const StepPlan& plan) const {
  const std::uint32_t end = plan.last_layer + 1 < config_.layers ? plan.last_layer : config_.layers;
  return static_cast<std::uint32_t>(
      std::ranges::count_if(geometry_->groups[plan.cold->group()].layers,
                            [&](std::uint32_t layer) { return layer < end; }));
}

// Keeps what a window brings, and lets the window go before the next one comes.
void ToyStep::bring(const Layer& at) {
  ColdBlocks& cold = *plan_->cold;
  const std::size_t bytes = at.group->kv_heads * geometry_->page_bytes(*at.group);
  const std::uint32_t blocks = cold.blocks();
  cold_.assign(blocks, {});
  table_.assign(blocks, kNoBlock);
  for (std::uint32_t first = 0, end; first < blocks && !dropped_[0]; first = end) {
    end = std::min(first + cold.window(), blocks);
    ColdBlocks::Came came;
    while ((came = cold.bring(at.place.index, first, end, table_.data())) ==
           ColdBlocks::Came::later) {
      clock_.advance(100'000);
      if (nap_) nap_();
    }
    dropped_[0] = came == ColdBlocks::Came::never;
    for (std::uint32_t b = first; b < end && !dropped_[0]; ++b) {
      const std::byte* const from = arena_at(at.view.arena, table_[b]) + at.place.index * bytes;
      cold_[b].assign(from, from + bytes);
    }
    if (!dropped_[0]) cold.release();
  }
}

// Where the rows of a block are: in the cache, or in scratch of the step.
std::byte* ToyStep::row_block(const Layer& at, std::uint32_t sequence, std::uint32_t block) {
  const KvSequenceView& v = at.row_view.sequences[sequence];
  if (v.blocks[block] != kNoBlock)
    return arena_at(at.row_view.arena, v.blocks[block]) + std::size_t{at.rows.index} *
                                                              at.row_group->kv_heads *
                                                              geometry_->page_bytes(*at.row_group);
  std::vector<std::byte>& scratch = passing_[{v.blocks, block}];
  scratch.resize(at.row_group->kv_heads * geometry_->page_bytes(*at.row_group));
  return scratch.data();
}

void ToyStep::store_rows(const Layer& at) {
  const LayerGroup& g = *at.row_group;
  const std::uint32_t tokens = geometry_->tokens_per_block;
  const AttendShape shape{.query_heads = config_.query_heads,
                          .kv_heads = g.kv_heads,
                          .head_dim = g.key_dim,
                          .scale = 1,
                          .rows = g.format->rows,
                          .layer_index = 0,
                          .page_bytes = geometry_->page_bytes(g),
                          .key_bytes = geometry_->key_bytes(g)};
  std::vector<float> key(g.key_dim), value(g.value_dim);
  places_.resize(plan_->tokens.size());
  passing_.clear();
  for (std::uint32_t s = 0; s < at.row_view.sequence_count; ++s) {
    const KvSequenceView& v = at.row_view.sequences[s];
    for (std::uint32_t i = 0; i < v.row_count && !is_dropped(s); ++i) {
      const std::uint32_t slot = v.past + i, row = v.first_row + i;
      std::byte* const block = row_block(at, s, slot / tokens);
      const bool passes = v.blocks[slot / tokens] == kNoBlock;
      places_[row] = {passes ? block : arena_at(at.row_view.arena, v.blocks[slot / tokens]),
                      slot % tokens, passes};
      for (std::uint32_t h = 0; h < g.kv_heads; ++h) {
        for (std::uint32_t d = 0; d < g.key_dim; ++d)
          key[d] = toy_number(states_[row], at.number, kKey, h, d);
        for (std::uint32_t d = 0; d < g.value_dim; ++d)
          value[d] = toy_number(states_[row], at.number, kValue, h, d);
        store_.store_key(shape, tokens, key.data(), slot % tokens, block + h * shape.page_bytes);
        store_.store_value(shape, tokens, value.data(), slot % tokens,
                           block + h * shape.page_bytes);
      }
    }
  }
}

// Of sequences whose queries somebody looks at.
void ToyStep::make_queries(const Layer& at) {
  const std::uint32_t dim = at.group->key_dim, width = config_.query_heads * dim;
  queries_.resize(states_.size() * width);
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const bool tapped = !plan_->taps.empty() && plan_->taps[s] != nullptr;
    const bool chooses = !plan_->reads.empty() && plan_->reads[s] != nullptr;
    if (!tapped && !chooses) continue;
    const KvSequenceView& v = at.view.sequences[s];
    for (std::size_t row = v.first_row; row < v.first_row + v.row_count; ++row)
      for (std::uint32_t i = 0; i < width; ++i)
        queries_[row * width + i] = toy_number(states_[row], at.number, kQuery, i / dim, i % dim);
  }
}

void ToyStep::fill_taps(const Layer& at) {
  const std::uint32_t dim = at.group->key_dim, width = config_.query_heads * dim;
  std::vector<float> rows;
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    Tap* const tap = plan_->taps[s];
    if (tap == nullptr || tap->group() != at.place.group || is_dropped(s)) continue;
    const KvSequenceView& v = at.view.sequences[s];
    for (std::uint32_t i = 0; i < v.row_count; ++i)
      tap->put(at.place.index, v.past + i, &queries_[std::size_t{v.first_row + i} * width]);
    for (std::uint32_t h = 0; h < config_.query_heads; ++h) {
      rows.clear();
      for (std::uint32_t i = 0; i < v.row_count; ++i) {
        const float* const q = &queries_[std::size_t{v.first_row + i} * width + h * dim];
        rows.insert(rows.end(), q, q + dim);
      }
      tap->add_moments(mass_, at.place.index, h, v.past, v.row_count, rows.data());
    }
  }
}

// Encodes the blocks that this step's rows complete.
void ToyStep::seal(const Layer& at) {
  const LayerGroup& g = *at.group;
  const PageShape shape = geometry_->page_shape(g);
  const EncodedPart keys = encoded_part(*g.format->keys, Side::keys, shape.rows(Side::keys)),
                    values =
                        encoded_part(*g.format->values, Side::values, shape.rows(Side::values));
  const std::size_t page_bytes = geometry_->page_bytes(g), key_bytes = geometry_->key_bytes(g),
                    row_page = geometry_->page_bytes(*at.row_group),
                    row_keys = geometry_->key_bytes(*at.row_group);
  const std::uint32_t tokens = geometry_->tokens_per_block;
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s) {
    const KvSequenceView& v = at.view.sequences[s];
    if (is_dropped(s)) continue;
    for (std::uint32_t b = v.past / tokens; (b + 1) * tokens <= v.past + v.row_count; ++b) {
      const std::byte* const rows = row_block(at, s, b);
      std::byte* const block = arena_at(at.view.arena, v.blocks[b]) +
                               std::size_t{at.place.index} * g.kv_heads * page_bytes;
      for (std::uint32_t h = 0; h < g.kv_heads; ++h) {
        encoded_.seal(keys, rows + h * row_page, block + h * page_bytes);
        encoded_.seal(values, rows + h * row_page + row_keys, block + h * page_bytes + key_bytes);
      }
    }
  }
}

void ToyStep::choose(const Layer& at) {
  const ChoosingLayer layer{.layer = at.number,
                            .index = at.place.index,
                            .places = places_.data(),
                            .row_index = at.rows.index,
                            .row_page_bytes = geometry_->page_bytes(*at.row_group),
                            .queries = queries_.data()};
  for (std::uint32_t task = 0; task < choosing_.tasks(); ++task)
    choosing_.run(layer, task, select_);
}

void ToyStep::attend(const Layer& at) {
  attended_.assign(states_.size(), 0);
  for (std::uint32_t s = 0; s < at.view.sequence_count; ++s)
    for (std::uint32_t h = 0; h < at.group->kv_heads && !is_dropped(s); ++h) attend_head(at, s, h);
  for (std::size_t row = 0; row < states_.size(); ++row)
    states_[row] = mix64(states_[row] + mix64(attended_[row] ^ at.number));
}

template <class Page>
void ToyStep::sum_slots(const LayerGroup& group, Page page, std::uint32_t from, std::uint32_t to,
                        std::vector<std::uint64_t>& sums) {
  const std::uint32_t tokens = geometry_->tokens_per_block;
  sums.assign(1, 0);
  for (std::uint32_t slot = from; slot < to;) {
    const std::span digests = pages_.digests(*geometry_, group, page(slot / tokens));
    const std::uint32_t stop = std::min(to, (slot / tokens + 1) * tokens);
    for (; slot < stop; ++slot) sums.push_back(sums.back() + digests[slot % tokens]);
  }
}

// What the rows of a sequence see with one head (kernels/kv_view.h, kernels/sealed.h).
void ToyStep::attend_head(const Layer& at, std::uint32_t sequence, std::uint32_t head) {
  const KvSequenceView& v = at.view.sequences[sequence];
  const LayerGroup &g = *at.group, &r = *at.row_group;
  const std::uint32_t tokens = geometry_->tokens_per_block, window = at.view.window;
  const std::uint32_t lane = at.place.index * g.kv_heads + head;
  const std::size_t page_bytes = geometry_->page_bytes(g);
  std::uint64_t kept = 0;
  if (v.lanes) {
    const KvLane& l = v.lanes[lane];
    sum_slots(
        g, [&](std::uint32_t b) { return arena_at(at.view.arena, l.pages[b]) + l.offset; }, 0,
        l.slots, sealed_sums_);
    kept = sealed_sums_.back();
  }
  const auto in_table = [&](std::uint32_t b) {
    if (b < cold_.size()) return cold_[b].data() + head * page_bytes;
    return arena_at(at.view.arena, v.blocks[b]) + lane * page_bytes;
  };
  const auto in_rows = [&](std::uint32_t b) {
    return row_block(at, sequence, b) + head * geometry_->page_bytes(r);
  };
  const auto seen_from = [&](std::uint32_t slot) {
    return window > 0 && slot + 1 > window ? slot + 1 - window : 0;
  };
  const auto reach = [&](std::uint32_t slot) {
    SealedReach e = g.sealed() ? sealed_reach(slot, tokens, window, r.recent_blocks, r.sink_blocks)
                               : SealedReach{0, 0};
    return e;
  };
  const std::uint32_t end = v.past + v.row_count;
  // Rows: sinks [0, sinks), then from `rows_from` on; encoded blocks between them.
  const SealedReach first = reach(v.past), last = reach(end - 1);
  const std::uint32_t table_from = std::max(v.ragged_until, seen_from(v.past));
  // Encoded slots that some row reads: where what stays exact is longer than the window, none.
  std::uint32_t sealed_from = end, sealed_to = 0;
  for (std::uint32_t slot = v.past; slot < end; ++slot)
    if (const SealedReach e = reach(slot); e.begin < e.end) {
      sealed_from = std::min(sealed_from, std::max(v.ragged_until, e.begin));
      sealed_to = e.end;
    }
  const std::uint32_t rows_from = g.sealed() ? std::max(first.end, seen_from(v.past)) : table_from;
  if (g.sealed()) sum_slots(g, in_table, sealed_from, sealed_to, sealed_sums_);
  std::vector<std::uint64_t> sinks(1, 0);
  if (g.sealed() && window == 0) sum_slots(r, in_rows, 0, last.begin, sinks);
  if (g.sealed())
    sum_slots(r, in_rows, rows_from, end, row_sums_);
  else
    sum_slots(g, in_table, rows_from, end, row_sums_);
  const auto between = [](const std::vector<std::uint64_t>& sums, std::uint32_t base,
                          std::uint32_t from, std::uint32_t to) {
    return from < to ? sums[to - base] - sums[from - base] : 0;
  };
  for (std::uint32_t i = 0; i < v.row_count; ++i) {
    const std::uint32_t slot = v.past + i;
    std::uint64_t sum = kept;
    if (g.sealed()) {
      const SealedReach e = reach(slot);
      sum += between(sealed_sums_, sealed_from, std::max(v.ragged_until, e.begin), e.end);
      if (window == 0) sum += between(sinks, 0, 0, e.begin);
      sum += between(row_sums_, rows_from, std::max(e.end, seen_from(slot)), slot + 1);
    } else {
      sum += between(row_sums_, rows_from, std::max(v.ragged_until, seen_from(slot)), slot + 1);
    }
    attended_[v.first_row + i] += mix64(sum + head);
  }
}

}  // namespace quire
