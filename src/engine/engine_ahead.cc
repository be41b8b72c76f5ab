// A step is submitted while the one before it still runs. Its tokens are not known yet, but the
// answers they belong to are. If an answer turns out to have ended, its row was computed in vain
// and is dropped.
#include <algorithm>

#include "base/check.h"
#include "engine/engine.h"

namespace quire {

// Whether the step at hand computes one token of every answer there is. The next step then does so,
// too, unless answers end.
bool Engine::steady() const {
  if (!options_.ahead.value_or(runtime_.executor().traits().ahead)) return false;
  if (line_.size() > 0 && branches_ < options_.sequences_max) return false;
  std::size_t open = 0;
  for (Job* job : running_) {
    if (job->state != Job::State::answering || job->beams || job->drafts ||
        !job->answers[0].programs.plans_ahead() || job->attached != job->answers.size() ||
        &geometry(*job) != &geometry(*running_[0]) || geometry(*job).by_block() ||
        geometry(*job).sparse())
      return false;
    open += static_cast<std::size_t>(std::ranges::count(job->answers, false, &Answer::done));
  }
  std::size_t rows = 0;
  for (const StepItem& item : items_) {
    if (item.tokens.size() > 1 || item.logits != Logits::last) return false;
    rows += item.tokens.size();
  }
  return open > 0 && open == rows;
}

// Submits the step after the one at hand, which is submitted and not completed. If there is no room
// for it, nothing is submitted ahead.
void Engine::go_ahead() {
  ahead_.items.clear();
  ahead_.rows.clear();
  ahead_.from.clear();
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].job) continue;
    Row row = rows_[i];
    if (row.job->answers[row.branch].generated + 1 >= row.job->request.tokens_max) continue;
    ahead_.from.push_back(std::exchange(row.first_logit, ahead_.rows.size()));
    ++row.past;
    ahead_.rows.push_back(row);
    ahead_.items.push_back(items_[i]);
  }
  if (ahead_.items.empty()) return;
  Result<Step> next = stepper_.submit(ahead_.items, {.want = StepWant::best,
                                                     .logprobs = logprobs_wanted(ahead_.rows),
                                                     .draws = {},
                                                     .from = ahead_.from});
  if (next.ok()) ahead_.step.emplace(std::move(next.value()));
}

// Must be called before jobs are removed.
void Engine::drop_ended() {
  if (!ahead_.step) return;
  bool all = true;
  for (std::size_t i = 0; i < ahead_.rows.size(); ++i) {
    Row& row = ahead_.rows[i];
    if (row.job && (row.job->state == Job::State::over || row.job->answers[row.branch].done)) {
      row.job = nullptr;
      ahead_.items[i].tokens = {};
      ahead_.items[i].sequence = nullptr;
    }
    all = all && !row.job;
  }
  if (!all) return;
  (void)stepper_.complete(*ahead_.step);  // a device that is lost says so again
  ahead_.step.reset();
}

// Rows of sequences whose cold blocks could not be had. Their programs say in the next step what is to
// be done.
void Engine::drop_incomplete() {
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (!step_->dropped(i)) continue;
    rows_[i].job = nullptr;
    items_[i].sequence = nullptr;
  }
}

// Waits for the step at hand and commits it, but for guesses, which must come true first. Before it is
// waited for, the next one is submitted.
Status Engine::complete_step(std::span<float>& logits) {
  if (ahead_.step) {
    ++stats_.steps_ahead;
    items_.swap(ahead_.items);
    rows_.swap(ahead_.rows);
    for (std::size_t i = 0; i < rows_.size(); ++i)  // what it reads is what was told
      CHECK(!rows_[i].job || items_[i].tokens[0] == best_[ahead_.from[i]].token);
    step_.emplace(std::move(*ahead_.step));
    ahead_.step.reset();
    may_go_ahead_ = steady();
  }
  if (may_go_ahead_) go_ahead();
  Result<StepResult> result = stepper_.complete(*step_);
  if (!result.ok()) {
    step_.reset();
    return result.error();
  }
  best_ = result.value().best;
  drawn_ = result.value().drawn;
  logits = result.value().logits;
  drop_incomplete();
  for (std::size_t i = 0; i < items_.size(); ++i)
    if (items_[i].sequence && items_[i].drafted == 0)
      stepper_.commit(*step_, items_, i, static_cast<std::uint32_t>(items_[i].tokens.size()));
  if (std::ranges::all_of(items_, [](const StepItem& item) { return item.drafted == 0; }))
    step_.reset();
  return {};
}

}  // namespace quire
