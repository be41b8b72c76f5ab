// Room for the rows of a step: what a job needs to join the batch, and which job is preempted when
// memory is short.
#include <algorithm>

#include "engine/engine.h"
#include "engine/plan.h"
#include "kv/planted.h"

namespace quire {

std::uint64_t Engine::full_bytes(const Job& job) const {
  if (job.request.kv.resident > 0) return job.request.kv.resident;
  return request_bytes(geometry(job),
                       {.prompt = job.request.prompt.size(),
                        .answer = job.request.tokens_max,
                        .width = job.width(),
                        .chunk = options_.step_tokens,
                        .cache_bytes = runtime_.kv_cache_bytes(),
                        .memory_page = runtime_.memory_page()},
                       job.request.kv.retain.get());
}

std::uint32_t Engine::places_of(TenantId tenant) const {
  std::uint32_t own = 0;
  for (const Job* job : running_)
    if (job->entry.tenant == tenant) own += job->width();
  return own;
}

bool Engine::has_its_share(const Job& job) const {
  const std::uint32_t most = options_.sequences_max_per_tenant;
  if (most == 0) return false;
  const std::uint32_t own = places_of(job.entry.tenant);
  return own > 0 && own + job.width() > most;
}

// Somebody may take all places while nobody else wants one. If then somebody comes who has none, the
// last job of whoever has more than three quarters of them goes back into the line.
void Engine::yield_place() {
  places_.assign(line_.tenants(), 0);
  for (const Job* job : running_)
    places_[static_cast<std::size_t>(job->entry.tenant)] += job->width();
  const auto most = std::ranges::max_element(places_);
  if (most == places_.end() || *most <= 1) return;
  if (std::uint64_t{*most} * 4 <= std::uint64_t{options_.sequences_max} * 3) return;
  const auto large = static_cast<TenantId>(most - places_.begin());
  line_.waiting(waiting_);
  const auto has_none = [&](TenantId t) { return places_[static_cast<std::size_t>(t)] == 0; };
  if (std::ranges::none_of(waiting_, has_none)) return;
  for (std::size_t i = running_.size(); i-- > 0;) {
    Job& job = *running_[i];
    if (job.entry.tenant != large || job.reserved) continue;
    const std::uint32_t before = job.preemptions;
    preempt(job);
    job.preemptions = before;  // it did not give way for lack of room
    return;
  }
}

bool Engine::has_room(Job& job, std::uint32_t cached) {
  if (branches_ + job.width() > options_.sequences_max) return false;
  const Geometry& g = geometry(job);
  const std::uint32_t known =
      static_cast<std::uint32_t>(job.request.prompt.size()) + job.generated / job.width();
  const std::uint32_t ahead = std::min(job.request.tokens_max, 2 * g.tokens_per_block);
  std::uint64_t whole = sequence_bytes(g, known + ahead);
  if (job.request.kv.retain)  // the prompt and what stays of it are there together for a moment
    whole += retained_bytes(g, *job.request.kv.retain, job.request.prompt.size());
  if (job.request.kv.resident > 0) whole = std::min(whole, job.request.kv.resident);
  // Blocks that it shares with running jobs cost nothing; cached blocks that no sequence holds do.
  // A new job is credited for shared blocks. A job that was preempted for lack of room is not,
  // unless its blocks are parked: these count as held already.
  const bool parked = job.placed && job.branch(job.first_open()).sequence->length() > 0;
  const std::uint64_t have = job.preemptions == 0 || parked ? sequence_bytes(g, cached) : 0;
  job.need_bytes = whole - std::min(whole, have) +
                   (job.width() - 1) * sequence_bytes(g, job.generated / job.width() + ahead);
  if (running_.empty()) return true;  // there is nobody to wait for
  if (job.preemptions >= options_.preemptions_max)
    return reserved_bytes_ + full_bytes(job) <= runtime_.kv_cache_bytes();
  return job.need_bytes + runtime_.cache().sheltered_bytes(job.root) <= room_bytes_;
}

// The step found no room, so a job is preempted. False: the only job failed because it could not go
// on even alone, and there is nothing left to run.
bool Engine::make_room() {
  if (snapshots_.drop_last() || give_up_loading()) return true;
  candidates_.clear();
  for (Job* job : running_)
    candidates_.push_back({line_.standing(job->id, job->entry),
                           job->reserved || job->preemptions >= options_.preemptions_max});
  std::optional<std::size_t> victim = pick_victim(candidates_);
  if (!victim && running_.size() > 1) {  // the first, if it alone may still be asked
    const auto open = std::ranges::find(candidates_, false, &Running::protect);
    if (open != candidates_.end()) victim = open - candidates_.begin();
  }
  if (victim) {
    preempt(*running_[*victim]);
    return true;
  }
  if (restart_parked() || hold_back(*running_.back()) || runtime_.cache().waive_shares() ||
      runtime_.cache().soften_breakpoint(running_.back()->root))
    return true;
  // A tier still writes into memory of those who left; it ends soon.
  if (runtime_.cache().landings() > 0) return false;
  fail(*running_.back(), FailureKind::no_room,
       runtime_.cache().stats().pinned_bytes > 0
           ? "the KV cache has no room left to go on: pinned prefixes hold it; release some or "
             "raise --kv-cache-memory"
           : "the KV cache has no room left to go on; raise --kv-cache-memory");
  sweep();
  return !running_.empty();
}

// A waiting job may hold memory that the cache never drops, because its programs' work cannot be
// restored by attaching. The last such job starts over. False: there is none.
bool Engine::restart_parked() {
  if (planted(Bug::parked_never_restart)) return false;
  Job* last = nullptr;
  for (const auto& [id, job] : jobs_) {
    if (job->state != Job::State::waiting || !job->placed) continue;
    bool holds = false;
    for (std::uint32_t i = 0; i < job->branch_count(); ++i)
      holds |= !job->branch(i).done && job->branch(i).sequence->length() > 0;
    if (holds &&
        (!last || line_.standing(last->id, last->entry) < line_.standing(job->id, job->entry)))
      last = job.get();
  }
  if (last == nullptr) return false;
  for (std::uint32_t i = 0; i < last->branch_count(); ++i) {
    const Branch b = last->branch(i);
    if (b.done || b.sequence->length() == 0) continue;
    runtime_.cache().preempt(*b.sequence, Preempt::recompute);
    b.program->reset(*b.sequence);
    ++stats_.preemptions_recompute;
  }
  return true;
}

// Answers of a job that are computed again may share less than they did as forks, and together need
// more memory than the job was admitted with. The last answer then waits until those before it are
// done. False: the job has only one answer, or its answers are beams, which step together.
bool Engine::hold_back(Job& job) {
  if (job.beams) return false;
  for (std::uint32_t i = job.attached; i-- > job.first_open() + 1;) {
    const Branch b = job.branch(i);
    if (b.done) continue;
    runtime_.cache().preempt(*b.sequence, Preempt::recompute);
    b.program->reset(*b.sequence);
    ++stats_.preemptions_recompute;
    job.attached = i;
    job.one_by_one = true;
    return true;
  }
  return false;
}

void Engine::preempt(Job& job) {
  job.loading.reset();
  const double wanted = wanted_tokens(job);
  for (std::uint32_t i = 0; i < job.attached; ++i) {
    const Branch b = job.branch(i);
    if (b.done) continue;
    const Yield yields = b.program->yield(*b.sequence);
    const Preempt how = yields == Yield::park        ? Preempt::park
                        : yields == Yield::recompute ? Preempt::recompute
                                                     : cheaper_preemption(*b.sequence, wanted);
    if (how == Preempt::recompute) b.program->reset(*b.sequence);
    runtime_.cache().preempt(*b.sequence, how);
    ++(how == Preempt::park ? stats_.preemptions_parked : stats_.preemptions_recompute);
  }
  job.attached = 0;
  job.placed = true;
  ++placed_;
  ++job.preemptions;
  job.state = Job::State::waiting;
  job.follow_since = 0;
  branches_ -= job.width();
  std::erase(running_, &job);
  line_.add(job.id, job.entry);
}

// The room, in tokens, that the other jobs will take before one of them ends: prompts that are
// still to be read, and for every answer as many tokens as the shortest answer has left, beyond
// their blocks.
double Engine::wanted_tokens(const Job& victim) {
  const auto for_each_other = [&](auto visit) {
    for (Job* job : running_)
      for (std::uint32_t i = 0; job != &victim && i < job->attached; ++i)
        if (!job->branch(i).done) visit(*job, i);
  };
  std::uint32_t least = 0xffffffffu;
  for_each_other([&](Job& job, std::uint32_t i) {
    least = std::min(least, job.request.tokens_max - job.generated_by(i));
  });
  const std::uint32_t per_block = runtime_.geometry().tokens_per_block;
  double wanted = 0;
  for_each_other([&](Job& job, std::uint32_t i) {
    const Branch b = job.branch(i);
    const std::uint32_t length = b.sequence->length(),
                        has = (length + per_block - 1) / per_block * per_block;
    const std::uint64_t end = std::uint64_t{length} + b.unread() + least;
    wanted += static_cast<double>(end - std::min<std::uint64_t>(end, has));
  });
  return wanted;
}

Preempt Engine::cheaper_preemption(const Sequence& s, double wanted) const {
  if (options_.preempt) return *options_.preempt;
  const CacheStats c = runtime_.cache().stats();
  const Geometry& g = runtime_.cache().geometry(s.root());
  const double length = std::max(s.length(), 1u);
  const double token_bytes =
      static_cast<double>(std::max<std::uint64_t>(sequence_bytes(g, s.length()), 1)) / length;
  const std::uint64_t held = c.referenced_bytes + c.fenced_bytes + c.cached_bytes;
  const GivingWay giving{
      .length = length,
      .whole = std::min<double>(s.published_blocks() * g.tokens_per_block, length),
      .free = static_cast<double>(c.budget_bytes - std::min(c.budget_bytes, held)) / token_bytes,
      .cached = static_cast<double>(c.cached_bytes - std::min(c.cached_bytes, c.pinned_bytes)) /
                token_bytes,
      .wanted = wanted,
      .reuse = c.tokens_queried == 0
                   ? 0
                   : static_cast<double>(c.tokens_hit) / static_cast<double>(c.tokens_queried)};
  const auto cost = [&](const PreemptLoss& loss) {
    return prefill_cost_.ns(length - loss.own, length) +
           prefill_cost_.ns(0, length) / length * loss.others;
  };
  return cost(loss_of_park(giving)) < cost(loss_of_recompute(giving)) ? Preempt::park
                                                                      : Preempt::recompute;
}

}  // namespace quire
