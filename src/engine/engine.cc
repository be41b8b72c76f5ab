#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/plan.h"
#include "engine/sessions.h"

namespace quire {
namespace {

constexpr std::size_t kRootNamesMax = 4096;  // then they are looked up again

}  // namespace

Engine::Engine(Runtime& runtime, const ServiceOptions& options, RequestLog& log, const Clock& clock)
    : runtime_(runtime),
      stepper_(runtime),
      snapshots_(runtime),
      options_(options),
      log_(log),
      clock_(clock),
      line_({}) {
  for (std::uint32_t i = 0; i < runtime.threads(); ++i)
    workers_.emplace_back(runtime.vector(), runtime.config().vocabulary);
  log_.tokens_per_block = runtime.geometry().tokens_per_block;
  if (options.drafts.sources >> kCachedDrafts & 1) runtime.cache().remember_tails();
}

Engine::~Engine() { fail_all(FailureKind::draining, "the server is stopping"); }

Job* Engine::find(JobId id) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() || it->second->state == Job::State::over ? nullptr : it->second.get();
}

void Engine::note(const Job& job, Reason reason, std::uint32_t tokens, std::uint64_t bytes) {
  runtime_.cache().note({.request = static_cast<std::uint64_t>(job.id),
                         .bytes = bytes,
                         .tokens = tokens,
                         .reason = reason});
}

// The root of a job's blocks. An error if the cache has no room for another root.
Result<RootId> Engine::root_of(const Job& job) {
  const KvPolicy& kv = job.request.kv;
  std::string name = kv.tenant;
  if (kv.storage) name += '\0' + kv.storage->name();
  const auto it = roots_.find(name);
  if (it != roots_.end() && runtime_.cache().alive(it->second)) return it->second;
  TRY(const RootId root, runtime_.tenant_root(kv.tenant, kv.storage.get()));
  if (roots_.size() >= kRootNamesMax) roots_.clear();
  roots_.insert_or_assign(std::move(name), root);
  if (std::ranges::find(*stats_.tenants, kv.tenant) == stats_.tenants->end() &&
      stats_.tenants->size() < ServiceStats::kTenantsMax) {
    auto names = *stats_.tenants;
    names.push_back(kv.tenant);
    stats_.tenants = std::make_shared<const std::vector<std::string>>(std::move(names));
  }
  return root;
}

void Engine::submit(std::unique_ptr<Job> owned) {
  Job& job = *owned;
  CHECK(jobs_.emplace(job.id, std::move(owned)).second);
  now_ = clock_.now();
  const Result<RootId> root = root_of(job);
  if (root.ok()) {
    job.root = root.value();
    job.root_hold = RootHold(runtime_.cache(), job.root);
  }
  job.entry = {line_.tenant(job.request.shares_as()), job.request.priority, job.submitted};
  job.record.number = static_cast<std::uint64_t>(job.id);
  job.record.submitted = job.submitted;
  job.record.journal_first = runtime_.cache().journal().next();
  log_.add(std::move(job.record));
  if (job.request.deadline > 0) {
    job.deadline = job.submitted + job.request.deadline;
    deadlines_.emplace(job.deadline, job.id);
  }
  line_.add(job.id, job.entry);
  look_below(job);
  ++stats_.requests_submitted;
  stats_.request_choices.add(job.request.choices);
  stats_.request_tokens_max.add(job.request.tokens_max);
  if (!root.ok()) {
    fail(job, FailureKind::no_room, root.error().message);
  } else if (const std::uint64_t quota =
                 runtime_.cache().tenant(job.request.kv.tenant).limits.bytes,
             whole = sequence_bytes(geometry(job), job.request.prompt.size()),
             need = job.request.kv.resident ? std::min(whole, job.request.kv.resident) : whole;
             quota > 0 && need > quota) {
    fail(job, FailureKind::quota,
         fmt::format("the prompt takes {} bytes of KV cache, the quota of its tenant is {} bytes",
                     need, quota));
  }
  sweep();
}

void Engine::cancel(JobId id) {
  now_ = clock_.now();
  if (Job* job = find(id)) fail(*job, FailureKind::cancelled, "the request was cancelled");
  sweep();
}

void Engine::finish(JobId id, std::uint32_t choice) {
  now_ = clock_.now();
  Job* job = find(id);
  if (job && !job->beams && choice < job->answers.size() && !job->answers[choice].done &&
      job->answers[choice].generated > 0)
    end_answer(*job, choice, Finish::stop_string);
  sweep();
}

void Engine::fail_all(FailureKind kind, const std::string& message) {
  now_ = clock_.now();
  for (auto& [id, job] : jobs_)
    if (job->state != Job::State::over) fail(*job, kind, message);
  sweep();
}

void Engine::expire() {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    Job* job = find(deadlines_.begin()->second);
    CHECK(job);
    fail(*job, FailureKind::deadline, "the request took longer than its deadline");
  }
  sweep();
}

// The job's turn has come: it gets its blocks and joins the batch.
void Engine::admit(Job& job) {
  if (!job.placed) place(job);
  if (!job.placed) return fail(job, FailureKind::no_room, "too many sequences are open");
  job.leave_queue();
  const bool first = job.admitted == 0;
  const std::uint32_t at = job.first_open();
  const Nanoseconds before = clock_.now();
  const Branch open = job.branch(at);
  const SequenceOptions options = sequence_options(job);
  const std::optional<Attached> made =
      first ? open.program->attach(stepper_, *open.sequence, options) : std::nullopt;
  const Attached got = made ? *made : runtime_.cache().attach(*open.sequence);
  if (first) open.program->attached(stepper_, *open.sequence, options);
  job.lookup += clock_.now() - before;
  job.placed = false;
  --placed_;
  job.attached = at + 1;
  job.state = job.beams || job.first_token > 0 ? Job::State::answering : Job::State::reading;
  job.read_steps = 0;
  job.follow_since = 0;
  running_.push_back(&job);
  branches_ += job.width();
  if (job.preemptions >= options_.preemptions_max && !job.reserved) {
    job.reserved = true;
    reserved_bytes_ += full_bytes(job);
  }
  note(job, Reason::admitted, got.tokens);
  if (first) job.admitted = now_;
  if (job.told_admission) return;
  job.cached = std::min(got.tokens, static_cast<std::uint32_t>(job.request.prompt.size()) - 1);
  job.waited =
      job.probed && job.cached > job.first_seen_tokens ? job.cached - job.first_seen_tokens : 0;
  job.reason = got.reason;
  if (!made) begin_loading(job);
  if (!job.loading) tell_admission(job);
}

// How much of the prompt was cached is known.
void Engine::tell_admission(Job& job) {
  const auto prompt = static_cast<std::uint32_t>(job.request.prompt.size());
  job.told_admission = true;
  stats_.prompt_tokens += prompt;
  stats_.prompt_tokens_cached += job.cached;
  stats_.prompt_tokens_waited += job.waited;
  stats_.prompt_tokens_loaded += job.loaded;
  stats_.prompt_tokens_remote += job.remote;
  stats_.prompt_tokens_computed += prompt - job.cached;
  ++stats_.missed[static_cast<std::size_t>(job.reason)];
  stats_.saved_prefill_seconds += job.cached * prefill_cost_.token_seconds();
  stats_.queue_seconds.add(static_cast<double>(job.admitted - job.submitted) * 1e-9);
  stats_.lookup_seconds.add(static_cast<double>(job.lookup) * 1e-9);
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id))) {
    record->admitted = job.admitted;
    record->cached_tokens = job.cached;
    record->waited_tokens = job.waited;
    record->reason = job.reason;
  }
  Admitted told{.prompt_tokens = prompt,
                .cached_tokens = job.cached,
                .waited_tokens = job.waited,
                .loaded_tokens = job.loaded,
                .remote_tokens = job.remote,
                .reason = job.reason,
                .queue_seconds = static_cast<double>(job.admitted - job.submitted) * 1e-9};
  if (job.request.explain)
    if (auto e = log_.explain_now(static_cast<std::uint64_t>(job.id), job.request.compare_to))
      told.explanation = std::make_shared<const Explanation>(std::move(*e));
  job.sink->admitted(told);
}

// The whole prompt is in the cache. Takes the leases that the request asks for.
void Engine::prompt_read(Job& job) {
  if (job.loading) end_loading(job);  // computing has passed the last block that was to come
  Sequence& s = *job.branch(0).sequence;
  const std::uint32_t per_block = runtime_.geometry().tokens_per_block;
  if (job.request.kv.write != KvWrite::none)
    job.written = s.published_blocks() * per_block -
                  std::min(s.published_blocks() * per_block, job.cached / per_block * per_block);
  for (const LeaseRequest& asked : job.request.kv.leases) {
    Result<LeaseId> lease = runtime_.cache().lease(s, asked);
    job.leases.push_back(lease.ok() ? lease.value() : LeaseId{});
    if (!lease.ok()) job.lease_problem = lease.error().message;
  }
  settle(job);
  if (!job.prompt_logprobs.empty()) {
    job.sink->prompt_logprobs(std::move(job.prompt_logprobs));
    job.prompt_logprobs.clear();
  }
}

// Programs do now what they can. States that other requests may start from are kept.
void Engine::settle(Job& job) {
  Answer& a = job.answers[0];
  if (a.programs.empty() || job.beams) return;
  a.programs.settle(stepper_, a.sequence);
  snapshots_.keep(job);
}

// What the first answer's programs did with the prompt holds for the others, too: they go on as
// forks of it.
void Engine::share_kept(Job& job) {
  Answer& first = job.answers[0];
  const auto ends_with_prompt = [&](const Answer& a) {  // not so after a preemption
    return a.sequence.length() == job.request.prompt.size() &&
           a.sequence.tokens().size() == job.request.prompt.size();
  };
  if (!ends_with_prompt(first) || first.programs.due(first.sequence)) return;
  for (std::uint32_t i = 1; i < job.attached; ++i) {
    Answer& a = job.answers[i];
    if (a.done || !ends_with_prompt(a) || !a.programs.due(a.sequence)) continue;
    Result<Sequence> fork = runtime_.cache().fork(first.sequence);
    if (!fork.ok()) return;  // they do it by themselves
    a.sequence = std::move(fork.value());
    a.programs = first.programs.fork_list();
  }
}

// The prompt was all that was asked for.
void Engine::end_unanswered(Job& job) {
  ProgramReport report;
  job.answers[0].programs.report(report);
  if (!std::ranges::all_of(report.pooled, [](float x) { return std::isfinite(x); }) ||
      report.pooled.empty() != (job.request.pooling == Pooling::none))
    return fail(job, FailureKind::numeric, "the model's output is not finite");
  job.programs.add(report);
  for (std::uint32_t c = 0; c < job.request.choices; ++c) {
    ++stats_.finished[static_cast<std::size_t>(Finish::length)];
    job.sink->finished(c, Finish::length);
  }
  complete(job);
}

void Engine::fail(Job& job, FailureKind kind, std::string message) {
  Failure failure{kind, std::move(message), kind == FailureKind::no_room ? 1u : 0u};
  ++stats_.failed[static_cast<std::size_t>(kind)];
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id)))
    record->failure = failure;
  job.request.session.reset();  // it stays as it was, and is free
  job.sink->failed(failure);
  end(job, kind == FailureKind::cancelled ? Reason::cancelled : Reason::failed);
}

// Exactly once per job. Its blocks are free when this returns.
void Engine::end(Job& job, Reason reason) {
  CHECK(job.state != Job::State::over);
  job.leave_queue();
  if (job.state != Job::State::waiting)
    branches_ -= job.width();
  else if (line_.contains(job.id))  // its turn may have come, and no sequence could be opened
    line_.remove(job.id);
  if (job.placed) --placed_;
  if (job.reserved) reserved_bytes_ -= full_bytes(job);
  if (job.deadline > 0) deadlines_.erase({job.deadline, job.id});
  job.state = Job::State::over;
  job.loading.reset();
  job.beams.reset();
  job.answers.clear();
  note(job, reason, job.generated);
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id))) {
    record->ended = now_;
    record->journal_end = runtime_.cache().journal().next();
  }
  over_.push_back(job.id);
}

void Engine::sweep() {
  if (over_.empty()) return;
  drop_ended();
  std::erase_if(running_, [](const Job* job) { return job->state == Job::State::over; });
  for (const JobId id : over_) jobs_.erase(id);
  over_.clear();
}

bool Engine::step() {
  drain_below();
  const bool ran = run_step();
  if (TierLink* link = runtime_.tiers()) link->send();
  return ran;
}

bool Engine::run_step() {
  const Nanoseconds started = now_ = clock_.now();
  expire();
  drop_ended();
  const Nanoseconds forward_before = stepper_.forward_time();
  if (!ahead_.step) compose(true);
  while (!ahead_.step) {
    if (items_.empty()) {
      sweep();
      return worked_;
    }
    const Status submitted = submit_step();
    if (submitted.ok()) break;
    if (submitted.error().code != Code::exhausted) {  // the device is lost: nothing can go on
      fail_all(FailureKind::device, submitted.error().message);
      return has_jobs();
    }
    if (drop_drafts()) continue;  // nobody gives way for a draft
    if (!make_room()) return has_jobs();
    compose(false);
  }
  std::span<float> logits;
  if (const Status completed = complete_step(logits); !completed.ok()) {
    fail_all(FailureKind::device, completed.error().message);
    return has_jobs();
  }
  const Nanoseconds computed = clock_.now(), forward = stepper_.forward_time() - forward_before;
  now_ = computed;
  std::uint32_t rows = 0;
  bool reading = false;
  for (const StepItem& item : items_) {
    rows += static_cast<std::uint32_t>(item.tokens.size());
    reading |= item.tokens.size() - item.drafted > 1;
  }
  measure(rows, forward);
  for (std::size_t i = 0; i < rows_.size(); ++i)
    if (rows_[i].job) {
      const std::size_t certain = items_[i].tokens.size() - items_[i].drafted;
      line_.charge(rows_[i].job->entry.tenant, certain);
    }
  use_logits(logits);
  step_.reset();
  sweep();
  const Nanoseconds ended = clock_.now();
  if (!reading) pace_.add(rows, static_cast<double>(ended - started));
  ++stats_.steps;
  stats_.step_rows += rows;
  stats_.rows_per_step.add(rows);
  stats_.step_seconds += static_cast<double>(ended - started) * 1e-9;
  stats_.forward_seconds += static_cast<double>(forward) * 1e-9;
  stats_.sample_seconds += static_cast<double>(ended - computed) * 1e-9;
  return true;
}

}  // namespace quire
