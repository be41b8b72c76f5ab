// The part of sampling that a GPU does: which rows keep their logits there.
#include <algorithm>

#include "engine/engine.h"

namespace quire {

// If the device draws tokens, every row returns its best token, a drawn token, or its logits.
Status Engine::submit_step() {
  const ExecutorTraits& traits = runtime_.executor().traits();
  StepAsk ask;
  if ((traits.draws || traits.ahead || steady()) && best_will_do()) {
    ask.want = StepWant::best;
    ask.logprobs = logprobs_wanted(rows_);
  } else if (traits.draws) {
    describe_draws();
    ask.want = StepWant::drawn;
    ask.draws = {.rows = draws_, .changes = changes_, .lists = draw_lists_};
  }
  TRY(Step step, stepper_.submit(items_, ask));
  step_.emplace(std::move(step));
  may_go_ahead_ = ask.want == StepWant::best && steady();
  return {};
}

bool Engine::logprobs_wanted(std::span<const Row> rows) {
  return std::ranges::any_of(
      rows, [](const Row& row) { return row.job && row.job->request.sampling.logprob; });
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
      if (!describe_draw(row, i, draw)) draw = {};
      if (draw.mode == DrawMode::above || draw.mode == DrawMode::top) draw.list = draw_lists_++;
    }
}

// False: the row's logits are needed on the host. Grammars know which tokens are allowed only after
// the pass. Beams, and the first tokens of several choices, need the whole row. Penalties count the
// prompt after it was read, and guesses after they came true. `which` counts the rows of an answer
// with guesses.
bool Engine::describe_draw(const Row& row, std::uint32_t which, DrawRow& draw) {
  Job& job = *row.job;
  const Request& r = job.request;
  const bool reading = job.state == Job::State::reading;
  const Answer& a = job.answers[reading || job.beams ? 0 : row.branch];
  if (r.beams > 0 || r.prompt_logprobs >= 0 || r.mask || a.mask) return false;
  if (reading && (r.choices > 1 || r.sampling.penalizes())) return false;
  if (which > 0 && r.sampling.penalizes()) return false;
  const auto position = static_cast<std::uint32_t>(r.prompt.size()) + a.generated + which;
  const std::span<const TokenId> banned = a.generated + which < r.tokens_min
                                              ? std::span<const TokenId>(job.end_tokens)
                                              : std::span<const TokenId>();
  return Sampler::describe(r.sampling, a.counts, reading ? 0 : row.branch, position, banned, draw,
                           changes_);
}

}  // namespace quire
