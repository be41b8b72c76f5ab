// The part of sampling that a GPU does: which rows keep their logits there.
#include <algorithm>

#include "engine/engine.h"

namespace quire {

// One forward pass. On a GPU all rows bring their best token, or what was drawn for them, or logits.
Status Engine::run_step(std::span<float>& logits) {
  best_ = {};
  drawn_ = {};
  logits = {};
  if (steady() && best_will_do()) {
    TRY(Runtime::Pending step, runtime_.submit(items_));
    pending_.emplace(std::move(step));
    return {};
  }
  if (runtime_.model().device() && best_will_do()) {
    TRY(best_, runtime_.step_greedy(items_));
  } else if (runtime_.model().device() && runtime_.config().logit_softcap == 0) {
    describe_draws();
    TRY(const Runtime::DrawnRows rows,
        runtime_.step_drawn(items_, {.rows = draws_, .changes = changes_, .lists = draw_lists_}));
    drawn_ = rows.drawn;
    logits = rows.logits;
  } else {
    TRY(logits, runtime_.step(items_));
  }
  return {};
}

// Whether all rows of the step want their most likely token and nothing else.
bool Engine::best_will_do() const {
  return std::ranges::all_of(rows_, [](const Row& row) {
    const Request& r = row.job->request;
    const SamplingOptions& o = r.sampling;
    return row.logit_count == 0 ||
           ((o.temperature == 0 || o.top_k == 1) && !o.penalizes() && o.logit_bias.empty() &&
            o.logprobs == 0 && r.beams == 0 && r.prompt_logprobs < 0 && !r.mask &&
            std::ranges::all_of(row.job->answers, [&](const Answer& a) {
              return !a.mask && a.generated >= r.tokens_min;
            }));
  });
}

void Engine::describe_draws() {
  draws_.clear();
  changes_.clear();
  draw_lists_ = 0;
  for (const Row& row : rows_)
    for (std::uint32_t i = 0; i < row.logit_count; ++i) {
      DrawRow& draw = draws_.emplace_back();
      if (!describe_draw(row, draw)) draw = {};
      if (draw.mode == DrawMode::above || draw.mode == DrawMode::top) draw.list = draw_lists_++;
    }
}

// False: its logits are wanted. Grammars say what may come only when the pass is over, beams and
// the choices of a prompt that was just read see all of a row, penalties count a prompt after it.
bool Engine::describe_draw(const Row& row, DrawRow& draw) {
  Job& job = *row.job;
  const Request& r = job.request;
  const bool reading = job.state == Job::State::reading;
  const Answer& a = job.answers[reading || job.beams ? 0 : row.branch];
  if (r.beams > 0 || r.prompt_logprobs >= 0 || r.mask || a.mask) return false;
  if (reading && (r.choices > 1 || r.sampling.penalizes())) return false;
  const auto position = static_cast<std::uint32_t>(r.prompt.size()) + a.generated;
  const std::span<const TokenId> banned = a.generated < r.tokens_min
                                              ? std::span<const TokenId>(job.end_tokens)
                                              : std::span<const TokenId>();
  return Sampler::describe(r.sampling, a.counts, reading ? 0 : row.branch, position, banned, draw,
                           changes_);
}

}  // namespace quire
