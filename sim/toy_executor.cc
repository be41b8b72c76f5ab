#include "sim/toy_executor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.h"
#include "format/basis.h"
#include "model/model.h"

namespace quire {
namespace {

constexpr Nanoseconds kStepTime = 1'000'000, kRowTime = 20'000;

Error lost() { return {Code::unavailable, "the toy device does not answer"}; }

}  // namespace

ToyExecutor::ToyExecutor(const ModelConfig& config, ManualClock& clock,
                         std::shared_ptr<PageNumbers> pages, bool draws, std::uint32_t rows_max)
    : config_(config),
      clock_(clock),
      pages_(std::move(pages)),
      vector_(vector_kernels(best_isa())),
      traits_{.numerics = 0x706f79,
              .rows_max = rows_max,
              .in_flight = 2,
              .draws = draws,
              .page_work = true,
              .gates = true,
              .cold_tokens = 1},
      rope_(config.ropes[0]),
      step_(config_, clock, *pages_) {}

Geometry ToyExecutor::geometry(std::uint32_t tokens_per_block, const StoragePolicy& policy) const {
  return make_geometry(config_, tokens_per_block, policy);
}

Status ToyExecutor::check_storage(const StoragePolicy&, const Geometry& geometry) const {
  if (geometry.by_block())
    return Error{Code::unsupported, "the toy executor has no pages that layers share"};
  for (const LayerGroup& g : geometry.groups)
    if (g.format->keys->calibrated || g.format->values->calibrated)
      return Error{Code::unsupported, "the toy executor has no calibrated formats"};
  return {};
}

bool ToyExecutor::is_lost() {
  const bool now = trouble_.lost > 0 && trouble_.random.chance(trouble_.lost);
  trouble_.losses += now;
  return now;
}

void ToyExecutor::Queued::take(const StepPlan& from) {
  plan = from;
  groups.assign(from.groups.begin(), from.groups.end());
  std::size_t count = 0, entries = 0;
  const auto blocks_of = [](const KvView& group, const KvSequenceView& v) {
    return (v.past + v.row_count + group.tokens_per_block - 1) / group.tokens_per_block;
  };
  for (const KvView& group : groups)
    for (std::uint32_t i = 0; i < group.sequence_count; ++i, ++count)
      entries += blocks_of(group, group.sequences[i]);
  sequences.resize(count);
  table.resize(entries);
  KvSequenceView* to = sequences.data();
  ArenaOffset* entry = table.data();
  for (KvView& group : groups) {
    std::copy_n(group.sequences, group.sequence_count, to);
    group.sequences = to;
    const ArenaOffset* before = nullptr;
    ArenaOffset* start = nullptr;  // of the sequence before
    for (const KvSequenceView* const end = to + group.sequence_count; to < end; ++to) {
      // Parts of one item follow each other and have one table; the last is the longest.
      if (std::exchange(before, to->blocks) == to->blocks) entry = start;
      start = entry;
      entry = std::copy_n(std::exchange(to->blocks, start), blocks_of(group, *to), entry);
    }
  }
  plan.groups = groups;
}

Result<StepTicket> ToyExecutor::submit(const StepPlan& plan) {
  CHECK(submitted_ - completed_ < 2 && (traits_.draws || plan.want != StepWant::drawn));
  CHECK(plan.tokens.size() <= traits_.rows_max &&
        plan.groups.size() == plan.geometry->groups.size());
  refused_ = is_lost();
  if (refused_) return lost();
  queue_[submitted_ % 2].take(plan);
  return static_cast<StepTicket>(submitted_++);
}

Result<StepResult> ToyExecutor::complete(StepTicket ticket) {
  CHECK(static_cast<std::uint32_t>(ticket) == completed_ && completed_ < submitted_);
  StepPlan& plan = queue_[completed_++ % 2].plan;
  const bool follows = !plan.tokens.empty() && (plan.tokens[0] & kBestOfRow) != 0;
  if (is_lost() || (follows && best_.empty())) {
    best_.clear();  // whoever reads them is lost, too
    return lost();
  }
  tokens_.assign(plan.tokens.begin(), plan.tokens.end());
  for (TokenId& t : tokens_)
    if ((t & kBestOfRow) != 0) t = best_[t & ~kBestOfRow].token;
  plan.tokens = tokens_;
  clock_.advance(kStepTime + kRowTime * static_cast<Nanoseconds>(tokens_.size()));
  find_logits(plan, step_.run(plan));
  if (plan.want == StepWant::drawn) draw(plan.draws);
  if (plan.want != StepWant::best)
    return StepResult{.logits = logits_,
                      .best = {},
                      .drawn = {drawn_.data(), plan.draws.rows.size()},
                      .dropped = step_.dropped()};
  find_best(plan.wanted.size());
  return StepResult{.logits = {},
                    .best = {best_.data(), plan.wanted.size()},
                    .drawn = {},
                    .dropped = step_.dropped()};
}

void ToyExecutor::find_logits(const StepPlan& plan, std::span<const std::uint64_t> states) {
  const std::uint32_t vocabulary = config_.vocabulary;
  logits_.resize(plan.wanted.size() * vocabulary);
  for (std::size_t i = 0; i < plan.wanted.size(); ++i) {
    float* const row = logits_.data() + i * vocabulary;
    const bool broken = trouble_.nan > 0 && trouble_.random.chance(trouble_.nan);
    trouble_.nans += broken;
    for (std::uint32_t t = 0; t < vocabulary; ++t)
      row[t] = broken ? std::numeric_limits<float>::quiet_NaN()
                      : static_cast<float>(mix64(states[plan.wanted[i]] ^ t) >> 44) * 0x1p-17f;
  }
}

// The bits of engine/sampler.h for the most likely token.
void ToyExecutor::find_best(std::size_t rows) {
  const std::uint32_t vocabulary = config_.vocabulary;
  best_.resize(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const float* const of = logits_.data() + i * vocabulary;
    const TokenId best = vector_.argmax(of, vocabulary);
    const double sum =
        of[best] + std::log(static_cast<double>(vector_.sum_exp(of, of[best], vocabulary)));
    best_[i] = {best, static_cast<float>(of[best] - sum)};
  }
}

void ToyExecutor::draw(const Draws& draws) {
  const std::uint32_t vocabulary = config_.vocabulary;
  if (lists_.size() < draws.lists) lists_.resize(draws.lists);
  drawn_.resize(draws.rows.size());
  DrawList none;  // of rows that have no likely part
  for (std::size_t i = 0; i < drawn_.size(); ++i) {
    const DrawRow& row = draws.rows[i];
    const bool listed = row.mode == DrawMode::above || row.mode == DrawMode::top;
    drawn_[i] = draw_scalar({logits_.data() + i * vocabulary, vocabulary}, row, draws.changes,
                            listed ? lists_[row.list] : none);
  }
}

void ToyExecutor::copy_block(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

// A plain softmax over the keys as they are read, query by query.
void ToyExecutor::add_mass(const Geometry& geometry, const TapSequence& sequence, const Tap& tap,
                           const MassAsk& ask, std::span<float* const> out) {
  const LayerGroup& group = geometry.groups[tap.group()];
  const std::uint32_t row_group = geometry.row_place(group.layers[0]).group;
  const LayerGroup& rows = geometry.groups[row_group];
  const KvSequenceView &view = sequence.groups[tap.group()], &row_view = sequence.groups[row_group];
  const std::uint32_t tokens = geometry.tokens_per_block, dim = group.key_dim, length = view.past;
  const std::uint32_t first = ask.first == 0xffffffffu ? tap.first() : ask.first;
  const std::uint32_t sealed_end = group.sealed() ? length / tokens * tokens : length;
  const std::uint32_t heads = tap.query_heads() / group.kv_heads;
  std::vector<float> keys, weights, query(dim);
  for (std::uint32_t task = 0; task < out.size(); ++task) {
    const std::uint32_t layer = task / tap.query_heads(), head = task % tap.query_heads();
    const std::uint32_t lane = layer * group.kv_heads + head / heads;
    keys.clear();
    const auto read = [&](const LayerGroup& g, const ArenaOffset* pages, std::size_t offset,
                          std::uint32_t from, std::uint32_t to) {
      for (std::uint32_t slot = from; slot < to; slot = (slot / tokens + 1) * tokens) {
        const std::span page =
            pages_->keys(geometry, g, arena_at(sequence.arena, pages[slot / tokens]) + offset);
        const std::size_t at = keys.size();
        keys.insert(
            keys.end(), page.begin() + std::size_t{slot % tokens} * dim,
            page.begin() + std::size_t{std::min(to - slot / tokens * tokens, tokens)} * dim);
        for (std::size_t i = at; i < keys.size(); i += dim)
          from_basis(g.format->keys->basis(Side::keys), dim, &keys[i]);
      }
    };
    const std::uint32_t kept = view.lanes ? view.lanes[lane].slots : 0;
    if (kept > 0) read(group, view.lanes[lane].pages, view.lanes[lane].offset, 0, kept);
    read(group, view.blocks, lane * geometry.page_bytes(group), view.ragged_until, sealed_end);
    read(rows, row_view.blocks, lane * geometry.page_bytes(rows), sealed_end, length);
    for (std::uint32_t i = 0; i < ask.rows; ++i) {
      const float* const q = tap.query(layer, first + i) + std::size_t{head} * dim;
      const std::uint32_t own_end = kept + first + i + 1 - view.ragged_until;
      const auto sees = [&](std::uint32_t slot) {
        if (!ask.repeat) return slot < own_end;
        return slot < ask.sinks || (slot >= ask.begin && slot < ask.end) ||
               (slot >= ask.own && slot < own_end);
      };
      float sum = 0;
      std::uint32_t seen = 0;
      weights.assign(own_end, 0.0f);
      for (std::uint32_t slot = 0; slot < own_end; ++slot) {
        if (!sees(slot)) continue;
        float dot = 0;
        for (std::uint32_t d = 0; d < dim; ++d) dot += q[d] * keys[std::size_t{slot} * dim + d];
        sum += weights[slot] = std::exp(dot);
        ++seen;
      }
      for (std::uint32_t slot = 0; slot < own_end; ++slot) {
        if (!sees(slot)) continue;
        const float share = weights[slot] / sum;
        float& to = out[task][slot];
        if (ask.rule == MassRule::sum) to += share * ask.weight;
        if (ask.rule == MassRule::peak) to = std::max(to, share);
        if (ask.rule == MassRule::below && share < 1.0f / static_cast<float>(seen))
          to += ask.weight;
      }
    }
  }
}

void ToyExecutor::rotate_keys(std::uint32_t, std::int32_t delta, std::uint32_t rows, float* keys) {
  const auto size = static_cast<std::uint32_t>(delta < 0 ? -delta : delta);
  rope_.cover(size + 1);
  std::vector<float> sines(rope_.sines(size), rope_.sines(size) + rope_.half());
  for (float& s : sines) s = delta < 0 ? -s : s;
  for (std::uint32_t i = 0; i < rows; ++i)
    vector_.rope(keys + std::size_t{i} * config_.head_dim, 2 * rope_.half(), rope_.cosines(size),
                 sines.data());
}

EncodedPart ToyExecutor::sealed_part(const Geometry& geometry, std::uint32_t layer, std::uint32_t,
                                     Side side, std::uint32_t) const {
  const LayerGroup& g = geometry.groups[geometry.places[layer].group];
  return encoded_part(side == Side::keys ? *g.format->keys : *g.format->values, side,
                      geometry.page_shape(g).rows(side));
}

}  // namespace quire
