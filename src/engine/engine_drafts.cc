// Drafts: a step reads an answer's next token and guesses of those that follow, one row each. The token
// that is drawn from a row decides whether the next row counts, exactly as it would have been drawn
// without guesses, so answers do not depend on them.
#include <algorithm>

#include "engine/engine.h"
#include "kv/planted.h"

namespace quire {
namespace {

constexpr std::uint32_t kDraftRowsMax = 64;  // of one step: the logits of all of them are wanted

}  // namespace

// A step that reads prompts has none: its rows cost more than guesses are worth.
void Engine::add_drafts() {
  const auto decodes = [](const StepItem& item) {
    return item.tokens.size() == 1 && item.logits == Logits::last;
  };
  if (!std::ranges::all_of(items_, decodes)) return;
  const auto rows = static_cast<std::uint32_t>(items_.size());
  const std::uint32_t room = std::min(options_.step_tokens, stepper_.rows_max());
  std::uint32_t left = std::min(kDraftRowsMax, room - std::min(room, rows));
  offers_.clear();
  for (std::uint32_t i = 0; i < rows && left > 0; ++i)
    if (rows_[i].job->drafts && rows_[i].job->state == Job::State::answering) offer_draft(i);
  if (options_.drafts.adaptive)
    pace_.choose(rows, left, offers_);
  else
    for (DraftOffer& offer : offers_) left -= offer.take = std::min(offer.length, left);
  for (const DraftOffer& offer : offers_) {
    if (offer.take == 0) continue;
    const Row& row = rows_[offer.row];
    items_[offer.row].tokens = row.job->answers[row.branch].drafter->rows(offer.take);
    items_[offer.row].drafted = offer.take;
    items_[offer.row].logits = Logits::all;
  }
  number_logits();
}

// What the answer's sources guess, if there is room for a guess.
void Engine::offer_draft(std::uint32_t row) {
  Job& job = *rows_[row].job;
  Answer& a = job.answers[rows_[row].branch];
  if (!a.drafter)
    a.drafter = std::make_unique<Drafter>(
        DraftScene{.options = options_.drafts, .request = job.request, .cache = runtime_.cache()});
  // The last token of an answer is drawn and never read.
  const std::uint32_t most =
      std::min({options_.drafts.tokens_max, job.request.tokens_max - a.generated - 1,
                a.programs.rows_max(rows_[row].past) - 1});
  if (a.drafter->propose(a.sequence, a.next, most, job.end_tokens, draft_rates_))
    offers_.push_back({row, a.drafter->length(), a.drafter->rate()});
}

// The step has no room for all of its rows. False: none of them are guesses.
bool Engine::drop_drafts() {
  bool dropped = false;
  for (StepItem& item : items_) {
    if (item.drafted == 0) continue;
    item.tokens = item.tokens.first(1);
    item.drafted = 0;
    item.logits = Logits::last;
    dropped = true;
  }
  if (dropped) number_logits();
  return dropped;
}

void Engine::number_logits() {
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    rows_[i].logit_count = static_cast<std::uint32_t>(items_[i].wanted());
    rows_[i].first_logit = std::exchange(next, next + rows_[i].logit_count);
  }
}

// Draws token after token, as long as the guesses are right.
void Engine::verify(Task& task, std::span<float> logits, SamplingWorker& worker) {
  const Job& job = *task.job;
  Answer& a = task.job->answers[task.answer];
  std::vector<Choice>& drawn = a.drafter->drawn;
  const std::span<const TokenId> guesses = items_[task.item].tokens.subspan(1);
  drawn.clear();
  for (std::uint32_t i = 0;; ++i) {
    task.complete = draw(task, i, logits, worker, drawn.emplace_back());
    const TokenId token = drawn.back().token;
    if (token == kNoToken) return;
    if (job.request.sampling.penalizes() && !planted(Bug::guesses_not_counted))
      a.counts.add_generated(token);
    if (task.complete || i == task.drafted || job.ends(token)) return;
    if (token != guesses[i] && !planted(Bug::trust_guesses)) return;
  }
}

// What was read before the last token that was drawn stays; the rest is given back.
void Engine::accept_draft(Task& task) {
  Job& job = *task.job;
  Answer& a = job.answers[task.answer];
  Drafter& drafter = *a.drafter;
  const auto read = static_cast<std::uint32_t>(drafter.drawn.size()), right = read - 1;
  const bool keeps_wrong = planted(Bug::keep_wrong_guess) && right < task.drafted;
  stepper_.commit(*step_, items_, task.item, read + keeps_wrong);
  drafter.judged(right, task.drafted, draft_rates_);
  DraftTally& tally = stats_.drafts[drafter.source()];
  ++tally.drafts;
  tally.tokens += task.drafted;
  tally.accepted += right;
  job.drafted += task.drafted;
  job.drafted_right += right;
  if (drafter.source() == kPredictionDrafts) {
    job.predicted += task.drafted;
    job.predicted_right += right;
  }
  for (std::size_t i = 0; i < right; ++i)
    ++tally.accepted_at[std::min(i, DraftTally::kPositions - 1)];
  for (std::uint32_t i = 0; i < read; ++i)
    accept_token(job, task.answer, drafter.drawn[i], i == right && task.complete);
}

}  // namespace quire
