#include "engine/stepper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace quire {

void Stepper::Plan::clear(std::size_t group_count) {
  tokens.clear();
  positions.clear();
  wanted.clear();
  taps.clear();
  page_reads.clear();
  reads.clear();
  tapped = false;
  if (sequences.size() < group_count) sequences.resize(group_count);
  for (auto& list : sequences) list.clear();
  views.resize(group_count);
}

Status Stepper::check_items(std::span<const StepItem> items) const {
  for (const StepItem& item : items) {
    const Geometry& g = geometry(item);
    const std::uint32_t first = item.sequence->length();
    if (g.sparse() && first < item.sequence->prompt_length() && first % g.tokens_per_block != 0)
      return Error{
          Code::invalid,
          fmt::format("a sparse prompt is read in whole blocks of {} tokens, not from {} on",
                      g.tokens_per_block, first)};
    if (item.program && item.tokens.size() > item.program->rows_max(first))
      return Error{Code::invalid,
                   fmt::format("{} tokens at once; the policy of this sequence allows {} after {}",
                               item.tokens.size(), item.program->rows_max(first), first)};
  }
  return {};
}

Result<Step> Stepper::submit(std::span<const StepItem> items, const StepAsk& ask) {
  for (const StepItem& item : items)
    if (item.program) TRY_STATUS(item.program->before_step(*this, *item.sequence));
  needs_.clear();
  std::size_t rows = 0, wanted = 0;
  for (const StepItem& item : items) {
    needs_.push_back({item.sequence, static_cast<std::uint32_t>(item.tokens.size()), item.drafted});
    rows += item.tokens.size();
    wanted += item.wanted();
  }
  if (rows > rows_max())
    return Error{Code::invalid, fmt::format("a step of {} rows does not fit {}; raise --batch-rows",
                                            rows, rows_max())};
  TRY_STATUS(check_items(items));
  TRY(Reservation room, cache().reserve(needs_));
  Step step(std::move(room), ask.want, clock_.now());
  step.items = items;
  step.wanted = wanted;
  step.draws = ask.draws;
  find_parts(items);
  if (parts_.size() != 1 || parts_[0].cold) {
    CHECK(ask.from.empty());
    return step;
  }
  step.plan = turn_ ^= 1;
  const Result<StepTicket> ticket =
      executor().submit(plan(plans_[step.plan], step.room, items, parts_[0], ask));
  step.queued = true;
  if (ticket.ok())
    step.ticket = ticket.value();
  else
    step.submission = ticket.error();
  return step;
}

Result<StepResult> Stepper::complete(Step& step) {
  TRY_STATUS(step.submission);
  StepResult result;
  if (step.queued) {
    TRY(result, executor().complete(step.ticket));
    const Nanoseconds now = clock_.now();
    forward_time_ += now - std::max(step.submitted, completed_);
    completed_ = now;
  } else {
    TRY(result, run_apart(step));
  }
  mark_faulted(step, result);
  return result;
}

void Stepper::find_parts(std::span<const StepItem> items) {
  parts_.clear();
  for (const StepItem& item : items)
    if (const Part part = part_of(item); std::ranges::find(parts_, part) == parts_.end())
      parts_.push_back(part);
}

// Parts are computed one after the other. Those whose blocks are in the arena wait for no tier.
Result<StepResult> Stepper::run_apart(Step& step) {
  const std::size_t vocabulary = runtime_.config().vocabulary;
  const bool best = step.want == StepWant::best;
  if (best)
    best_.resize(step.wanted);
  else
    logits_.resize(step.wanted * vocabulary);
  find_parts(step.items);
  std::ranges::stable_partition(parts_, [](const Part& p) { return p.cold == nullptr; });
  for (const Part& p : parts_) {
    const StepAsk ask{.want = best ? StepWant::best : StepWant::logits};
    const Nanoseconds began = clock_.now();
    TRY(const StepTicket ticket, executor().submit(plan(plans_[0], step.room, step.items, p, ask)));
    TRY(const StepResult part, executor().complete(ticket));
    forward_time_ += clock_.now() - began;
    std::size_t from = 0, to = 0, sequence = 0;
    for (std::size_t i = 0; i < step.items.size(); ++i) {
      const StepItem& item = step.items[i];
      const std::size_t count = item.wanted();
      if (part_of(item) == p) {
        if (p.cold && part.dropped[0])
          step.dropped_items.push_back(i);
        else if (!part.broken.empty() && part.broken[sequence])
          mark_faulted(step, i);
        ++sequence;
        if (best)
          std::copy_n(part.best.begin() + from, count, best_.begin() + to);
        else
          std::copy_n(part.logits.begin() + from * vocabulary, count * vocabulary,
                      logits_.begin() + to * vocabulary);
        from += count;
      }
      to += count;
    }
  }
  if (best) return StepResult{.logits = {}, .best = best_, .drawn = {}};
  drawn_.assign(step.want == StepWant::drawn ? step.wanted : 0, {});  // all as logits
  return StepResult{.logits = logits_, .best = {}, .drawn = drawn_};
}

// Finds sequences whose keys, values or logits are not finite, before anything is published. If a
// hidden state is not finite, all its logits are NaN.
void Stepper::mark_faulted(Step& step, const StepResult& result) const {
  const std::size_t vocabulary = runtime_.config().vocabulary;
  std::size_t row = 0;
  for (std::size_t i = 0; i < result.broken.size(); ++i)
    if (result.broken[i] && step.items[i].sequence) mark_faulted(step, i);
  for (std::size_t at = 0; at < step.items.size(); ++at)
    for (std::size_t i = 0; i < step.items[at].wanted(); ++i, ++row) {
      if (step.dropped(at)) continue;
      const bool finite = !result.best.empty() ? std::isfinite(result.best[row].logprob)
                          : !result.drawn.empty() && result.drawn[row].mode != DrawMode::logits
                              ? result.drawn[row].finite != 0
                              : std::isfinite(result.logits[row * vocabulary]);
      if (!finite && step.items[at].sequence) mark_faulted(step, at);
    }
}

void Stepper::mark_faulted(Step& step, std::size_t item) {
  if (step.items[item].drafted == 0)
    step.items[item].sequence->mark_faulted();
  else if (!step.spoiled(item))
    step.spoiled_items.push_back(item);
}

void Stepper::commit(Step& step, std::span<const StepItem> items, std::size_t i,
                     std::uint32_t accepted) {
  step.room.commit(i, items[i].tokens.first(accepted));
  if (items[i].program) items[i].program->after_step(*this, *items[i].sequence);
}

void Stepper::commit(Step& step, std::span<const StepItem> items) {
  for (std::size_t i = 0; i < items.size(); ++i)
    commit(step, items, i, static_cast<std::uint32_t>(items[i].tokens.size()));
}

Result<std::span<float>> Stepper::run(std::span<const StepItem> items) {
  TRY(Step step, submit(items));
  TRY(const StepResult result, complete(step));
  if (!step.dropped_items.empty())
    return Error{Code::unavailable, "a tier lost a block that this step reads"};
  commit(step, items);
  return result.logits;
}

Result<std::span<const BestToken>> Stepper::run_best(std::span<const StepItem> items) {
  TRY(Step step, submit(items, {.want = StepWant::best, .logprobs = false}));
  TRY(const StepResult result, complete(step));
  commit(step, items);
  return result.best;
}

StepPlan Stepper::plan(Plan& to, const Reservation& room, std::span<const StepItem> items,
                       const Part& part, const StepAsk& ask) {
  const Geometry& g = *part.geometry;
  to.clear(g.groups.size());
  std::uint64_t serial = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (part_of(items[i]) != part) continue;
    add_item(to, room, items, i, g, ask);
    serial = cache().geometry_serial(items[i].sequence->root());
  }
  set_views(to, g);
  StepPlan made{.geometry = &g,
                .serial = serial,
                .tokens = to.tokens,
                .positions = to.positions,
                .groups = to.views,
                .wanted = to.wanted,
                .want = ask.want,
                .logprobs = ask.logprobs,
                .draws = ask.draws,
                .cold = part.cold};
  if (to.tapped) made.taps = to.taps;
  if (!to.page_reads.empty()) made.reads = to.reads;
  return made;
}

void Stepper::add_item(Plan& to, const Reservation& room, std::span<const StepItem> items,
                       std::size_t i, const Geometry& g, const StepAsk& ask) {
  const StepItem& item = items[i];
  Program* const program = item.program;
  const auto first_row = static_cast<std::uint32_t>(to.tokens.size()),
             count = static_cast<std::uint32_t>(item.tokens.size());
  const std::uint32_t begin = room.past(i), end = begin + count;
  const std::uint32_t shift = program ? program->position_shift() : item.position_shift;
  Tap* tap = program ? program->tap(begin, count) : nullptr;
  if (tap == nullptr) tap = item.tap;
  to.tapped |= tap != nullptr;
  const std::uint32_t prompt = item.sequence->prompt_length();
  const bool sparse = g.sparse();
  for (std::uint32_t at = begin, stop; at < end; at = stop) {
    stop = program ? program->part_end(at, end) : end;
    if (sparse && at < prompt)
      stop = std::min({stop, prompt, (at / g.tokens_per_block + 1) * g.tokens_per_block});
    to.taps.push_back(tap);
    to.reads.push_back(nullptr);
    if (std::optional<PageReads> reads = program ? program->reads(at) : std::nullopt)
      to.reads.back() = &to.page_reads.emplace_back(*reads);
    else if (sparse && at < prompt)
      to.reads.back() = &to.page_reads.emplace_back();
    if (to.reads.back() && item.chosen) to.page_reads.back().chosen = &(*item.chosen)[at];
    for (std::uint32_t group = 0; group < g.groups.size(); ++group) {
      KvSequenceView view = room.view(i, group, first_row + at - begin);
      view.past = at;
      view.row_count = stop - at;
      to.sequences[group].push_back(view);
    }
  }
  for (std::uint32_t row = 0; row < count; ++row) {
    to.positions.push_back(begin - shift + row);
    to.tokens.push_back(ask.from.empty() ? item.tokens[row] : kBestOfRow | ask.from[i]);
    if (item.logits == Logits::all || (item.logits == Logits::last && row + 1 == count))
      to.wanted.push_back(first_row + row);
  }
}

void Stepper::set_views(Plan& to, const Geometry& g) const {
  for (std::size_t group = 0; group < g.groups.size(); ++group)
    to.views[group] = {.arena = runtime_.cache().arena(),
                       .sequences = to.sequences[group].data(),
                       .sequence_count = static_cast<std::uint32_t>(to.sequences[group].size()),
                       .tokens_per_block = g.tokens_per_block,
                       .window = g.groups[group].window};
}

}  // namespace quire
