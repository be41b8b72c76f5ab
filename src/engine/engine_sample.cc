// From a step's logits to tokens, reported to the sinks.
#include <algorithm>

#include "engine/engine.h"
#include "engine/plan.h"

namespace quire {

void Engine::use_logits(std::span<float> logits) {
  const std::size_t vocabulary = runtime_.config().vocabulary;
  tasks_.clear();
  const auto is_over = [](const Row& row) {
    return !row.job || row.job->state == Job::State::over;
  };
  // First of all: one branch that is not finite ends the others of its job.
  for (const Row& row : rows_)
    if (!is_over(row) && row.job->branch(row.branch).sequence->faulted())
      fail(*row.job, FailureKind::numeric,
           "the model's output is not finite; nothing of this request was kept");
  for (std::uint32_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
    if (is_over(row)) continue;
    Job& job = *row.job;
    const Branch b = job.branch(row.branch);
    const bool reading = job.state == Job::State::reading;
    if (reading && job.request.prompt_logprobs >= 0 && row.past >= unscored(job))
      score_prompt(row, logits);
    if (b.unread() > 0) continue;
    const std::uint32_t last = row.first_logit + row.logit_count - 1;
    if (reading) {
      begin_answers(job, last, logits);
    } else if (items_[i].drafted > 0) {
      if (step_->spoiled(i))
        job.answers[row.branch].drafter->pause();
      else
        tasks_.push_back(
            {&job, row.branch, row.first_logit, false, {}, false, items_[i].drafted, i});
    } else if (row.logit_count > 0 && !job.beams) {
      tasks_.push_back({&job, row.branch, last, false, {}, false});
    } else if (row.logit_count > 0 && row.branch == 0) {
      advance_beams(job,
                    logits.subspan(row.first_logit * vocabulary, job.branch_count() * vocabulary));
    }
  }
  sample(logits);
}

void Engine::score_prompt(const Row& row, std::span<const float> logits) {
  Job& job = *row.job;
  const std::vector<TokenId>& prompt = job.request.prompt;
  const std::size_t vocabulary = runtime_.config().vocabulary;
  const auto alternatives = static_cast<std::uint32_t>(job.request.prompt_logprobs);
  job.prompt_logprobs.resize(prompt.size());
  for (std::uint32_t i = 0; i < job.request.prompt_logprobs_from; ++i)
    job.prompt_logprobs[i].token = prompt[i];
  runtime_.pool().run([&](ThreadPool::Worker worker) {
    Sampler& sampler = workers_[worker.index].sampler;
    for (std::uint32_t i = worker.index; i < row.logit_count; i += worker.count) {
      const std::size_t at = row.past + i + 1;
      if (at >= prompt.size()) return;
      if (at < job.request.prompt_logprobs_from) continue;
      const std::span<const float> of =
          logits.subspan((row.first_logit + i) * vocabulary, vocabulary);
      PromptLogprob& p = job.prompt_logprobs[at];
      p.token = prompt[at];
      p.logprob = static_cast<float>(of[p.token] - sampler.log_sum_exp(of));
      if (alternatives > 0) p.alternatives = sampler.top(of, alternatives);
    }
  });
}

// The prompt has been read: its last logits begin every choice.
void Engine::begin_answers(Job& job, std::uint32_t logit_row, std::span<const float> logits) {
  prompt_read(job);
  job.prompt_over = true;
  Request& r = job.request;
  if (r.tokens_max == 0) {
    const Answer& a = job.answers[0];
    if (!a.programs.due(a.sequence)) return end_unanswered(job);
    job.state = Job::State::answering;  // it ends when its programs are done
    return;
  }
  job.state = Job::State::answering;
  if (r.beams > 0) {
    const std::size_t vocabulary = runtime_.config().vocabulary;
    job.beams.emplace(BeamOptions{.width = r.beams,
                                  .choices = r.choices,
                                  .tokens_max = r.tokens_max,
                                  .tokens_min = r.tokens_min,
                                  .length_penalty = r.length_penalty,
                                  .logprobs = r.sampling.logprobs,
                                  .end_tokens = job.end_tokens},
                      std::move(job.answers[0].sequence));
    return advance_beams(job, logits.subspan(logit_row * vocabulary, vocabulary));
  }
  if (r.sampling.penalizes()) job.answers[0].counts.add_prompt(r.prompt);
  job.answers[0].mask = std::move(r.mask);
  for (std::uint32_t c = 1; c < r.choices; ++c) {
    // Shares the whole prompt; the first to write into its last block copies that one.
    Result<Sequence> fork = runtime_.cache().fork(job.answers[0].sequence);
    if (!fork.ok()) return fail(job, FailureKind::no_room, fork.error().message);
    Answer& a = job.answers.emplace_back();
    a.sequence = std::move(fork.value());
    a.counts = job.answers[0].counts;
    a.programs = job.answers[0].programs.fork_list();
    if (job.answers[0].mask) a.mask = job.answers[0].mask->fork();
  }
  job.attached = r.choices;
  for (std::uint32_t c = 0; c < r.choices; ++c)
    tasks_.push_back({&job, c, logit_row, r.choices > 1, {}, false});
}

void Engine::advance_beams(Job& job, std::span<const float> logits) {
  const Result<bool> more = job.beams->advance(runtime_.cache(), workers_[0].sampler, logits);
  if (!more.ok()) return fail(job, FailureKind::no_room, more.error().message);
  job.attached = job.branch_count();
  if (more.value()) return;
  for (const Beam& b : job.beams->open())
    job.kv_bytes =
        std::max(job.kv_bytes, sequence_bytes(geometry(job), b.sequence.tokens().size()));
  const std::vector<Beam> best = job.beams->best();
  for (std::uint32_t c = 0; c < job.request.choices; ++c) {
    Nanoseconds last = 0;
    const bool there = c < best.size();
    if (there)
      for (const Choice& choice : best[c].choices) tell_token(job, c, choice, last);
    const Finish how = there && best[c].ended ? Finish::end_token : Finish::length;
    ++stats_.finished[static_cast<std::size_t>(how)];
    job.sink->finished(c, how);
  }
  complete(job);
}

void Engine::sample(std::span<float> logits) {
  if (tasks_.empty()) return;
  if (!best_.empty()) {
    for (Task& task : tasks_) sample_one(task, logits, workers_[0]);
  } else if (few_to_sample()) {
    for (Task& task : tasks_) sample_one(task, logits, workers_[0]);
  } else {
    runtime_.pool().run([&](ThreadPool::Worker worker) {
      for (std::size_t i = worker.index; i < tasks_.size(); i += worker.count)
        sample_one(tasks_[i], logits, workers_[worker.index]);
    });
  }
  for (Task& task : tasks_) task.drafted > 0 ? accept_draft(task) : accept(task);
}

// Whether this thread should sample alone. A device leaves little to do: nothing for tokens that it
// has drawn, and a choice among a few candidates otherwise. Waking the other threads takes longer.
bool Engine::few_to_sample() const {
  constexpr std::size_t kChoicesMax = 16;
  std::size_t choices = 0;
  for (const Task& task : tasks_) {
    if (drawn_.empty() || drawn_[task.logit].mode == DrawMode::logits) return tasks_.size() == 1;
    choices += drawn_[task.logit].list != nullptr;
  }
  return choices <= kChoicesMax;
}

void Engine::sample_one(Task& task, std::span<float> logits, SamplingWorker& worker) {
  if (task.drafted > 0) return verify(task, logits, worker);
  task.complete = draw(task, 0, logits, worker, task.choice);
}

// The token that follows `which` guesses that came true. True: the mask wants no more.
bool Engine::draw(const Task& task, std::uint32_t which, std::span<float> logits,
                  SamplingWorker& worker, Choice& choice) {
  const Job& job = *task.job;
  Answer& a = task.job->answers[task.answer];
  const std::size_t logit = task.logit + which;
  const std::uint32_t generated = a.generated + which;
  const auto position = static_cast<std::uint32_t>(job.request.prompt.size()) + generated;
  if (!best_.empty()) {
    const bool wanted = job.request.sampling.logprob;
    choice = {best_[logit].token, wanted ? best_[logit].logprob : 0, {}};
    return false;
  }
  if (!drawn_.empty() && drawn_[logit].mode != DrawMode::logits) {
    choice = worker.sampler.choose(drawn_[logit], job.request.sampling, task.answer, position);
    return false;
  }
  const std::size_t vocabulary = runtime_.config().vocabulary;
  std::span<float> row = logits.subspan(logit * vocabulary, vocabulary);
  if (task.shared) {
    worker.row.assign(row.begin(), row.end());
    row = worker.row;
  }
  TokenLimits limits;
  if (generated < job.request.tokens_min) limits.banned = job.end_tokens;
  if (a.mask && a.mask->fill(worker.bits)) limits.allowed = worker.bits;
  choice =
      worker.sampler.sample(row, job.request.sampling, a.counts, task.answer, position, limits);
  return a.mask && choice.token != kNoToken && !a.mask->accept(choice.token);
}

void Engine::tell_token(Job& job, std::uint32_t index, const Choice& choice, Nanoseconds& last) {
  if (job.first_token == 0) {
    job.first_token = now_;
    stats_.first_token_seconds.add(since(job.submitted));
  }
  if (last > 0) {
    stats_.inter_token_seconds.add(since(last));
    job.gaps.add(since(last));
  }
  last = now_;
  ++job.generated;
  ++stats_.tokens_generated;
  job.sink->token(index, choice);
}

void Engine::accept(Task& task) {
  Answer& a = task.job->answers[task.answer];
  if (task.job->request.sampling.penalizes() && task.choice.token != kNoToken)
    a.counts.add_generated(task.choice.token);
  accept_token(*task.job, task.answer, task.choice, task.complete);
}

void Engine::accept_token(Job& job, std::uint32_t index, const Choice& choice, bool complete) {
  Answer& a = job.answers[index];
  if (choice.token == kNoToken) return end_answer(job, index, Finish::mask);
  a.next = choice.token;
  ++a.generated;
  tell_token(job, index, choice, a.last_token_at);
  if (job.ends(choice.token))
    end_answer(job, index, Finish::end_token);
  else if (complete)
    end_answer(job, index, Finish::mask);
  else if (a.generated >= job.request.tokens_max)
    end_answer(job, index, Finish::length);
}

}  // namespace quire
