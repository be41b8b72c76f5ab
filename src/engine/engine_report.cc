// The end of an answer and of a request, with what they cost, reported to sink, log and statistics.
#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/sessions.h"

namespace quire {

void Engine::end_answer(Job& job, std::uint32_t index, Finish how) {
  Answer& a = job.answers[index];
  a.done = true;
  const TokenId next = std::exchange(a.next, kNoToken);
  ProgramReport report;
  a.programs.report(report);
  job.kv_bytes = std::max(job.kv_bytes, runtime_.cache().bytes(a.sequence) + report.bytes_beside);
  job.programs.add(report);
  job.kv_bytes_whole =
      std::max(job.kv_bytes_whole, sequence_bytes(geometry(job), a.sequence.length()));
  if (job.request.session) keep_session(job, next);
  a.sequence.close();
  ++stats_.finished[static_cast<std::size_t>(how)];
  if (RequestRecord* record = log_.find(static_cast<std::uint64_t>(job.id))) {
    record->finishes.resize(job.request.choices, Finish::cancelled);
    record->finishes[index] = how;
  }
  job.sink->finished(index, how);
  if (std::ranges::all_of(job.answers, &Answer::done)) complete(job);
}

// The session of a request that ended well stands behind its answer. `next` was told, not read.
void Engine::keep_session(Job& job, TokenId next) {
  KvCache& cache = runtime_.cache();
  Answer& a = job.answers[0];
  // What is due now would be done before the next rows: it depends on the length alone.
  if (a.programs.before_step(stepper_, a.sequence).ok()) snapshots_.keep_session(job);
  const auto known = a.sequence.tokens();
  const std::uint32_t read = a.sequence.length();
  std::vector<TokenId> tokens(known.begin(), known.end());
  if (next != kNoToken) tokens.push_back(next);
  std::optional<LeaseId> lease;
  if (job.request.kv.write != KvWrite::none)
    if (const Result<LeaseId> got =
            cache.lease(a.sequence, {.label = kSessionLabel + job.request.session->id()});
        got.ok())
      lease = got.value();
  if (const auto old = job.request.session->ended(std::move(tokens), read, lease))
    (void)cache.release(*old);
  job.request.session.reset();
}

void Engine::complete(Job& job) {
  if (job.request.session && !job.answers.empty()) keep_session(job, kNoToken);
  const auto prompt = static_cast<std::uint32_t>(job.request.prompt.size());
  const Nanoseconds read = job.first_token > 0 ? job.first_token : now_;
  const std::uint32_t approximate = job.programs.approximate_tokens;
  const auto seconds = [](Nanoseconds t) { return static_cast<double>(t) * 1e-9; };
  Done done{.prompt_tokens = prompt,
            .cached_tokens = job.cached,
            .loaded_tokens = job.loaded,
            .remote_tokens = job.remote,
            .approximate_tokens = approximate,
            .converted = job.programs.converted,
            .computed_tokens = prompt - job.cached - approximate,
            .written_tokens = job.written,
            .generated_tokens = job.generated,
            .drafted_tokens = job.drafted,
            .accepted_tokens = job.drafted_right,
            .predicted_accepted = job.predicted_right,
            .predicted_wrong = job.predicted - job.predicted_right,
            .preemptions = job.preemptions,
            .kv_bytes = job.kv_bytes,
            .kv_bytes_whole = std::max(job.kv_bytes, job.kv_bytes_whole),
            .kv_bytes_read = job.programs.bytes_read,
            .kv_bytes_readable = job.programs.bytes_readable,
            .cold_bytes = job.programs.cold_bytes,
            .cold_hidden_bytes = job.programs.cold_hidden_bytes,
            .cold_blocks = job.programs.cold_blocks,
            .lost_blocks = job.programs.lost_blocks,
            .node = job.keys.empty() ? BlockKey{} : job.keys.back(),
            .reason = job.reason,
            .queue_seconds = seconds(job.admitted - job.submitted),
            .prefill_seconds = seconds(read - job.admitted),
            .first_token_seconds = job.first_token > 0 ? seconds(read - job.submitted) : 0,
            .decode_seconds = seconds(now_ - read),
            .submitted = job.submitted,
            .lookup_seconds = seconds(job.lookup),
            .load_seconds = seconds(job.load_time),
            .token_gap_median = job.gaps.quantile(0.5),
            .token_gap_99 = job.gaps.quantile(0.99),
            .saved_prefill_seconds = job.cached * prefill_cost_.token_seconds(),
            .leases = job.leases,
            .lease_problem = job.lease_problem};
  if (job.request.kv.resident > 0) {
    stats_.cold_bytes += done.cold_bytes;
    stats_.cold_hidden_bytes += done.cold_hidden_bytes;
    stats_.lost_blocks += done.lost_blocks;
    stats_.cold_tokens += done.computed_tokens + done.generated_tokens;
  }
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
  done.pooled = std::move(job.programs.pooled);  // it is not kept in the log
  job.sink->done(done);
  end(job, Reason::finished);
}

// Notes what the step computes, and measures the cost of a prompt token. The cache is told only when the cost has changed noticeably:
// jitter would only shuffle the order of eviction.
void Engine::measure(std::uint32_t rows, Nanoseconds forward) {
  // Blocks that are brought take time that computing does not. Rows that were dropped wanted some.
  const auto is_other = [](const StepItem& i) {
    return i.sequence == nullptr || (i.program && i.program->cold());
  };
  if (std::ranges::any_of(items_, is_other)) return;
  double positions = 0;
  std::size_t reading = 0;
  shape_ = {};
  bool drafted = false;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const auto count = static_cast<double>(items_[i].tokens.size());
    positions += count * (rows_[i].past + count / 2);
    if (items_[i].tokens.size() - items_[i].drafted > 1) reading += items_[i].tokens.size();
    shape_.add(static_cast<std::uint32_t>(items_[i].tokens.size()), rows_[i].past);
    drafted |= items_[i].drafted > 0;
  }
  if (drafted) shape_ = {};
  if (reading < PrefillCost::kRowsMin) return;
  prefill_cost_.add(rows, positions / rows, static_cast<double>(forward));
  const double now = prefill_cost_.token_seconds();
  log_.token_seconds = now;
  if (now < 0.8 * cost_reported_ || now > 1.25 * cost_reported_) {
    cost_reported_ = now;
    runtime_.cache().set_recompute_cost(prefill_cost_.token_ns(),
                                        prefill_cost_.token_position_ns());
  }
}

void Engine::name_adapters() {
  if (!std::exchange(adapters_moved_, false)) return;
  std::set<std::string_view> running, waiting;
  for (const auto& [id, job] : jobs_)
    if (const KvPolicy& kv = job->request.kv; kv.adapters)
      (job->state == Job::State::waiting ? waiting : running).insert(kv.adapter_names);
  stats_.adapters.reset();
  if (running.empty() && waiting.empty()) return;
  const auto names = std::make_shared<ServiceStats::AdapterNames>();
  for (const auto& [of, to] : {std::pair(&running, &names->running), {&waiting, &names->waiting}})
    for (const std::string_view name : *of) (*to += to->empty() ? "" : ",") += name;
  stats_.adapters = names;
}

const ServiceStats& Engine::stats() {
  name_adapters();
  stats_.requests_running = static_cast<std::uint32_t>(running_.size());
  stats_.requests_waiting = static_cast<std::uint32_t>(line_.size());
  stats_.sequences_running = branches_;
  stats_.cache = runtime_.cache().stats();
  stats_.block_times = runtime_.cache().block_times();
  stats_.tiers.clear();
  if (TierLink* link = runtime_.tiers())
    for (TierPlace p = 0; p < link->tiers(); ++p) stats_.tiers.push_back(link->stats(p));
  stats_.key_error = runtime_.executor().seal_error().keys.relative();
  stats_.value_error = runtime_.executor().seal_error().values.relative();
  const CacheStats& c = stats_.cache;
  stats_.kv_usage = std::min(1.0, static_cast<double>(c.referenced_bytes + c.pinned_bytes) /
                                      static_cast<double>(c.budget_bytes));
  for (std::size_t i = 0; i < stats_.tenants->size(); ++i) {
    const TenantInfo tenant = runtime_.cache().tenant((*stats_.tenants)[i]);
    stats_.tenant_bytes[i] = tenant.bytes;
    stats_.tenant_quotas[i] = tenant.limits.bytes;
  }
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
