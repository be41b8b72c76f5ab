#include "engine/engine.h"

#include <algorithm>

#include "base/check.h"
#include "engine/plan.h"

namespace quire {

Engine::Engine(Runtime& runtime, const ServiceOptions& options, RequestLog& log, const Clock& clock)
    : runtime_(runtime),
      stepper_(runtime),
      snapshots_(runtime),
      options_(options),
      log_(log),
      clock_(clock),
      line_({}) {
  for (std::uint32_t i = 0; i < runtime.threads(); ++i)
    lanes_.emplace_back(runtime.vector(), runtime.config().vocabulary);
  log_.tokens_per_block = runtime.geometry().tokens_per_block;
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

RootId Engine::root_of(const Job& job) {
  const KvPolicy& kv = job.request.kv;
  std::string name = kv.tenant;
  if (kv.storage) name += '\0' + kv.storage->name();
  const auto it = roots_.find(name);
  if (it != roots_.end()) return it->second;
  const Result<RootId> root = runtime_.tenant_root(kv.tenant, kv.storage.get());
  CHECK(root.ok());
  roots_.emplace(std::move(name), root.value());
  if (!kv.storage && tenant_roots_.size() < ServiceStats::kTenantsMax) {
    tenant_roots_.push_back(root.value());
    auto names = *stats_.tenants;
    names.push_back(job.request.kv.tenant);
    stats_.tenants = std::make_shared<const std::vector<std::string>>(std::move(names));
  }
  return root.value();
}

void Engine::submit(std::unique_ptr<Job> owned) {
  Job& job = *owned;
  CHECK(jobs_.emplace(job.id, std::move(owned)).second);
  now_ = clock_.now();
  job.root = root_of(job);
  job.entry = {line_.tenant(job.request.kv.tenant), job.request.priority, job.submitted};
  job.record.number = static_cast<std::uint64_t>(job.id);
  job.record.submitted = job.submitted;
  job.record.journal_first = runtime_.cache().journal().next();
  log_.add(std::move(job.record));
  if (job.request.deadline > 0) {
    job.deadline = job.submitted + job.request.deadline;
    deadlines_.emplace(job.deadline, job.id);
  }
  line_.add(job.id, job.entry);
  ++stats_.requests_submitted;
  stats_.request_choices.add(job.request.choices);
  stats_.request_tokens_max.add(job.request.tokens_max);
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

// Its turn has come: it gets its blocks and joins the batch.
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
  if (!first) return;

  const auto prompt = static_cast<std::uint32_t>(job.request.prompt.size());
  job.admitted = now_;
  job.cached = std::min(got.tokens, prompt - 1);
  job.waited =
      job.probed && job.cached > job.first_seen_tokens ? job.cached - job.first_seen_tokens : 0;
  job.reason = got.reason;
  stats_.prompt_tokens += prompt;
  stats_.prompt_tokens_cached += job.cached;
  stats_.prompt_tokens_waited += job.waited;
  stats_.prompt_tokens_computed += prompt - job.cached;
  ++stats_.missed[static_cast<std::size_t>(got.reason)];
  stats_.saved_prefill_seconds += job.cached * prefill_cost_.token_seconds();
  stats_.queue_seconds.add(since(job.submitted));
  stats_.lookup_seconds.add(static_cast<double>(job.lookup) * 1e-9);
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id))) {
    record->admitted = now_;
    record->cached_tokens = job.cached;
    record->waited_tokens = job.waited;
    record->reason = got.reason;
  }
  told_ = true;
  job.sink->admitted({.prompt_tokens = prompt,
                      .cached_tokens = job.cached,
                      .waited_tokens = job.waited,
                      .reason = got.reason,
                      .queue_seconds = since(job.submitted)});
}

// All of the prompt is in the cache: what the request wants kept is kept.
void Engine::prompt_read(Job& job) {
  Sequence& s = *job.branch(0).sequence;
  const std::uint32_t per_block = runtime_.geometry().tokens_per_block;
  if (job.request.kv.write != KvWrite::none)
    job.written = s.published_blocks() * per_block -
                  std::min(s.published_blocks() * per_block, job.cached / per_block * per_block);
  for (const Retention& keep : job.request.kv.retention) {
    Result<LeaseId> lease = runtime_.cache().lease(s, {.first_token = keep.first_token,
                                                       .end_token = keep.end_token,
                                                       .ttl = keep.ttl,
                                                       .priority = keep.priority,
                                                       .pin = keep.pin});
    if (lease.ok())
      job.leases.push_back(lease.value());
    else
      job.lease_problem = lease.error().message;
  }
  settle(job, job.width() > 1);
  if (!job.prompt_logprobs.empty()) {
    told_ = true;
    job.sink->prompt_logprobs(std::move(job.prompt_logprobs));
    job.prompt_logprobs.clear();
  }
}

// Programs do what can be done now; what they leave for others is kept.
void Engine::settle(Job& job, bool forks) {
  Answer& a = job.answers[0];
  if (a.programs.empty() || job.beams) return;
  a.programs.settle(stepper_, a.sequence, forks);
  if (!short_of_room_) snapshots_.keep(job);
}

void Engine::end_answer(Job& job, std::uint32_t index, Finish how) {
  Answer& a = job.answers[index];
  a.done = true;
  a.next = kNoToken;
  ProgramReport report;
  a.programs.report(report);
  job.kv_bytes = std::max(job.kv_bytes, runtime_.cache().bytes(a.sequence) + report.bytes_beside);
  job.programs.add(report);
  job.kv_bytes_whole =
      std::max(job.kv_bytes_whole, sequence_bytes(geometry(job), a.sequence.length()));
  a.sequence.close();
  ++stats_.finished[static_cast<std::size_t>(how)];
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id))) {
    record->finishes.resize(job.request.choices, Finish::cancelled);
    record->finishes[index] = how;
  }
  told_ = true;
  job.sink->finished(index, how);
  if (std::ranges::all_of(job.answers, &Answer::done)) complete(job);
}

void Engine::complete(Job& job) {
  const auto prompt = static_cast<std::uint32_t>(job.request.prompt.size());
  const Nanoseconds read = job.first_token > 0 ? job.first_token : now_;
  const std::uint32_t approximate = job.programs.approximate_tokens;
  const auto seconds = [](Nanoseconds t) { return static_cast<double>(t) * 1e-9; };
  Done done{.prompt_tokens = prompt,
            .cached_tokens = job.cached,
            .approximate_tokens = approximate,
            .computed_tokens = prompt - job.cached - approximate,
            .written_tokens = job.written,
            .generated_tokens = job.generated,
            .preemptions = job.preemptions,
            .kv_bytes = job.kv_bytes,
            .kv_bytes_whole = std::max(job.kv_bytes, job.kv_bytes_whole),
            .kv_bytes_read = job.programs.bytes_read,
            .kv_bytes_readable = job.programs.bytes_readable,
            .node = job.keys.empty() ? BlockKey{} : job.keys.back(),
            .reason = job.reason,
            .queue_seconds = seconds(job.admitted - job.submitted),
            .prefill_seconds = seconds(read - job.admitted),
            .first_token_seconds = job.first_token > 0 ? seconds(read - job.submitted) : 0,
            .decode_seconds = seconds(now_ - read),
            .submitted = job.submitted,
            .lookup_seconds = seconds(job.lookup),
            .token_gap_median = job.gaps.quantile(0.5),
            .token_gap_99 = job.gaps.quantile(0.99),
            .saved_prefill_seconds = job.cached * prefill_cost_.token_seconds(),
            .leases = job.leases,
            .lease_problem = job.lease_problem};
  stats_.request_seconds.add(since(job.submitted));
  stats_.prefill_seconds.add(done.prefill_seconds);
  stats_.decode_seconds.add(done.decode_seconds);
  stats_.inference_seconds.add(since(job.admitted));
  stats_.request_prompt_tokens.add(prompt);
  stats_.request_generated_tokens.add(job.generated);
  stats_.request_computed_tokens.add(done.computed_tokens);
  if (job.generated > job.request.choices)
    stats_.token_seconds.add(done.decode_seconds * job.request.choices /
                             (job.generated - job.request.choices));
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id))) {
    record->first_token = job.first_token;
    record->done = done;
  }
  told_ = true;
  job.sink->done(done);
  end(job, Reason::finished);
}

void Engine::fail(Job& job, FailureKind kind, std::string message) {
  Failure failure{kind, std::move(message), kind == FailureKind::no_room ? 1u : 0u};
  ++stats_.failed[static_cast<std::size_t>(kind)];
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id)))
    record->failure = failure;
  told_ = true;
  job.sink->failed(failure);
  end(job, kind == FailureKind::cancelled ? Reason::cancelled : Reason::failed);
}

// Exactly once per job. Its blocks are free when this returns.
void Engine::end(Job& job, Reason reason) {
  CHECK(job.state != Job::State::over);
  job.leave_queue();
  if (job.state == Job::State::waiting)
    line_.remove(job.id);
  else
    branches_ -= job.width();
  if (job.placed) --placed_;
  if (job.reserved) reserved_bytes_ -= full_bytes(job);
  if (job.deadline > 0) deadlines_.erase({job.deadline, job.id});
  job.state = Job::State::over;
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

// What the step tells of the cost of a prompt token. The cache hears of it when it has changed
// noticeably: a jitter would only shuffle the order of eviction.
void Engine::measure(std::uint32_t rows, Nanoseconds forward) {
  double positions = 0;
  std::size_t reading = 0;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto count = static_cast<double>(items_[i].tokens.size());
    positions += count * (rows_[i].past + count / 2);
    if (items_[i].tokens.size() > 1) reading += items_[i].tokens.size();
  }
  if (reading < PrefillCost::kRowsMin) return;
  prefill_cost_.add(rows, positions / rows, static_cast<double>(forward));
  const double now = prefill_cost_.token_seconds();
  log_.token_seconds = now;
  if (now < 0.8 * cost_told_ || now > 1.25 * cost_told_) {
    cost_told_ = now;
    runtime_.cache().set_recompute_cost(prefill_cost_.token_ns(),
                                        prefill_cost_.token_position_ns());
  }
}

bool Engine::step() {
  const Nanoseconds started = now_ = clock_.now();
  short_of_room_ = false;
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
  for (const StepItem& item : items_) rows += static_cast<std::uint32_t>(item.tokens.size());
  measure(rows, forward);
  for (std::size_t i = 0; i < rows_.size(); ++i)
    if (rows_[i].job) line_.charge(rows_[i].job->entry.tenant, items_[i].tokens.size());
  use_logits(logits);
  sweep();
  const Nanoseconds ended = clock_.now();
  ++stats_.steps;
  stats_.step_rows += rows;
  stats_.rows_per_step.add(rows);
  stats_.step_seconds += static_cast<double>(ended - started) * 1e-9;
  stats_.forward_seconds += static_cast<double>(forward) * 1e-9;
  stats_.sample_seconds += static_cast<double>(ended - computed) * 1e-9;
  return true;
}

const ServiceStats& Engine::stats() {
  stats_.requests_running = static_cast<std::uint32_t>(running_.size());
  stats_.requests_waiting = static_cast<std::uint32_t>(line_.size());
  stats_.sequences_running = branches_;
  stats_.cache = runtime_.cache().stats();
  stats_.block_times = runtime_.cache().block_times();
  stats_.key_error = runtime_.executor().seal_error().keys.relative();
  stats_.value_error = runtime_.executor().seal_error().values.relative();
  const CacheStats& c = stats_.cache;
  stats_.kv_usage = std::min(1.0, static_cast<double>(c.referenced_bytes + c.pinned_bytes) /
                                      static_cast<double>(c.budget_bytes));
  for (std::size_t i = 0; i < tenant_roots_.size(); ++i)
    stats_.tenant_bytes[i] = runtime_.cache().cached_bytes(tenant_roots_[i]);
  return stats_;
}

std::vector<ActiveRequest> Engine::active() const {
  const Nanoseconds now = clock_.now();
  std::vector<ActiveRequest> all;
  for (const auto& [id, job] : jobs_) {
    ActiveRequest a{.ticket = static_cast<Ticket>(static_cast<std::uint64_t>(id)),
                    .id = job->request.id,
                    .tenant = job->request.kv.tenant,
                    .prompt_tokens = static_cast<std::uint32_t>(job->request.prompt.size()),
                    .cached_tokens = job->cached,
                    .computed_tokens = 0,
                    .generated_tokens = job->generated,
                    .choices = job->request.choices,
                    .preemptions = job->preemptions,
                    .age = now - job->submitted};
    a.state = job->state == Job::State::reading     ? ActiveRequest::State::reading
              : job->state == Job::State::answering ? ActiveRequest::State::answering
                                                    : ActiveRequest::State::waiting;
    if (job->attached > 0 && !job->beams && job->answers[0].sequence.is_open())
      a.computed_tokens = job->answers[0].sequence.length();
    all.push_back(std::move(a));
  }
  std::ranges::sort(all, {}, &ActiveRequest::ticket);
  return all;
}

}  // namespace quire
