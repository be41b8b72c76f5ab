// The rows of a step: which jobs join it, which wait for another job, and the order of their rows.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/programs.h"
#include "kernels/attend.h"

namespace quire {
namespace {

constexpr std::uint32_t kPlacedMax = 256;  // waiting jobs with a cursor in the index
constexpr std::uint32_t kPromptRows = 96;  // of prompts, in a step that also makes answers
constexpr std::uint32_t kScoredRows = 64;  // rows of a step whose logits are all wanted

}  // namespace

void Engine::add_row(Job& job, std::uint32_t branch, std::uint32_t rows) {
  const Branch b = job.branch(branch);
  const std::uint32_t past = b.sequence->length(), unread = b.unread();
  StepItem item{b.sequence, {}, Logits::none, b.program};
  if (unread == 0) {
    item.tokens = {b.next, 1};
    item.logits = Logits::last;
  } else {
    item.tokens = b.sequence->tokens().subspan(past, rows);
    if (job.state == Job::State::reading && past >= unscored(job))
      item.logits = Logits::all;
    else if (rows == unread && !b.next && job.request.tokens_max > 0)
      item.logits = Logits::last;
  }
  const std::uint32_t first =
      rows_.empty() ? 0 : rows_.back().first_logit + rows_.back().logit_count;
  const std::uint32_t logits = item.logits == Logits::all ? rows : item.logits == Logits::last;
  items_.push_back(item);
  rows_.push_back({&job, branch, past, first, logits});
}

// Does a little of the work that programs have before a job's next rows. False: the job has no rows
// in this step.
bool Engine::goes_on(Job& job) {
  if (job.state == Job::State::reading) settle(job);
  for (std::uint32_t i = 0; i < job.attached; ++i) {
    const Branch b = job.branch(i);
    if (b.done) continue;
    const Program::Work work = b.program->work(stepper_, *b.sequence, work_rows_);
    if (work == Program::Work::none) {
      if (b.program->due(*b.sequence))
        break;  // it found no room: the step says so, others make way
      continue;
    }
    if (work == Program::Work::waits) return false;
    worked_ = true;
    if (work == Program::Work::unfinished) return false;
    if (work == Program::Work::failed) {
      fail(job, b.program->problem_kind(), b.program->problem());
      return false;
    }
    if (job.beams || i > 0) continue;
    settle(job);
    share_kept(job);
  }
  if (job.state != Job::State::answering || job.request.tokens_max > 0 ||
      job.branch(0).unread() > 0)
    return true;
  worked_ = true;
  end_unanswered(job);
  return false;
}

// Puts rows of answers into the step. Prompts are only noted: they share the rows that are left.
// Returns the number of rows taken.
std::uint32_t Engine::collect(Job& job) {
  if (!arrives(job) || !goes_on(job)) return 0;
  std::uint32_t taken = 0;
  bool lagging = job.attached < job.branch_count();
  for (std::uint32_t i = 0; i < job.attached; ++i) {
    const Branch b = job.branch(i);
    if (b.done || b.unread() == 0) continue;
    lagging = true;
    const bool sparse = geometry(job).sparse();
    const std::uint32_t together = sparse ? geometry(job).tokens_per_block : 1;
    const std::uint32_t prompt = b.sequence->prompt_length(), past = b.sequence->length();
    const std::uint32_t unscored_rows =
        job.state == Job::State::reading && job.request.prompt_logprobs >= 0
            ? past < unscored(job) ? unscored(job) - past : kScoredRows
            : 0xffffffffu;
    readings_.push_back(
        {.remaining = b.unread(),
         .rows_max =
             std::min({unscored_rows, b.program->rows_max(past),
                       job.loading ? job.loading->rows(*b.sequence) : 0xffffffffu,
                       job.request.chunk ? std::max(job.request.chunk, together) : 0xffffffffu}),
         .steps = job.read_steps,
         .together = together,
         .loose = past < prompt ? b.unread() - (prompt - past) : b.unread()});
    reading_of_.emplace_back(&job, i);
  }
  if (job.beams && lagging) return 0;  // beams go on together
  for (std::uint32_t i = 0; i < job.attached; ++i) {
    const Branch b = job.branch(i);
    if (b.done || b.unread() > 0 || !b.next) continue;
    add_row(job, i, 1);
    ++taken;
  }
  return taken;
}

// Tokens of the prompt before the first whose logits are wanted to score the prompt. A sparse prompt is
// read in whole blocks.
std::uint32_t Engine::unscored(const Job& job) const {
  const Request& r = job.request;
  if (r.prompt_logprobs < 0) return 0xffffffffu;
  const std::uint32_t first = r.prompt_logprobs_from - 1, p = geometry(job).tokens_per_block;
  return geometry(job).sparse() ? first / p * p : first;
}

std::uint32_t Engine::prompt_tokens() const {
  const bool is_cpu = runtime_.executor().traits().device == DeviceKind::cpu;
  return options_.prompt_tokens.value_or(is_cpu ? kPromptRows : options_.step_tokens);
}

// Puts rows of sequences that begin with the same blocks next to each other, so that attention
// reads these blocks once for all of them. Rows of one job stay together.
void Engine::group_by_prefix() {
  items_before_.reserve(items_.capacity());  // now: a step that decodes allocates nothing
  rows_before_.reserve(rows_.capacity());
  prefixes_.clear();
  for (const Row& row : rows_) {
    const Sequence& s = *row.job->branch(row.job->first_open()).sequence;
    const std::vector<LayerGroup>& groups = geometry(*row.job).groups;
    const auto chain = std::ranges::find(groups, GroupKind::full, &LayerGroup::kind);
    if (chain == groups.end()) return;
    prefixes_.push_back(
        {s.table(static_cast<std::uint32_t>(chain - groups.begin())), s.length() / kAttendSplit});
  }
  const std::uint32_t stride = kAttendSplit / runtime_.geometry().tokens_per_block;
  const auto before = [&](std::uint32_t i, std::uint32_t j) {
    const Prefix &a = prefixes_[i], &b = prefixes_[j];
    for (std::uint32_t k = 0; k < std::min(a.splits, b.splits); ++k)
      if (a.table[k * stride] != b.table[k * stride])
        return a.table[k * stride] < b.table[k * stride];
    return a.splits != b.splits ? a.splits < b.splits : i < j;
  };
  order_.resize(rows_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  if (std::is_sorted(order_.begin(), order_.end(), before)) return;
  std::sort(order_.begin(), order_.end(), before);
  items_before_.swap(items_);
  rows_before_.swap(rows_);
  items_.clear();
  rows_.clear();
  std::uint32_t logits = 0;
  for (const std::uint32_t i : order_) {
    items_.push_back(items_before_[i]);
    rows_.push_back(rows_before_[i]);
    rows_.back().first_logit = std::exchange(logits, logits + rows_.back().logit_count);
  }
}

void Engine::compose(bool admitting) {
  choose_rows(admitting);
  sweep();  // jobs whose programs were all that was left
  if (options_.drafts.on()) add_drafts();
  if (rows_.size() > 1) group_by_prefix();
}

void Engine::choose_rows(bool admitting) {
  items_.clear();
  rows_.clear();
  readings_.clear();
  reading_of_.clear();
  worked_ = false;
  work_rows_ = running_.size() > 1 ? prompt_tokens() : options_.step_tokens;
  std::uint32_t left = options_.step_tokens;
  if (admitting && branches_ >= options_.sequences_max && line_.size() > 0) yield_place();
  for (Job* job : running_) {
    resume_branches(*job);
    left -= collect(*job);
  }
  // A block of a sparse prompt is read at once.
  if (!items_.empty())
    left = std::min(left, std::max(prompt_tokens(), runtime_.geometry().tokens_per_block));
  const auto share = [&] {
    share_rows(left, readings_, order_);
    for (const std::uint32_t i : order_) {
      if (readings_[i].rows == 0) continue;
      add_row(*reading_of_[i].first, reading_of_[i].second, readings_[i].rows);
      left -= readings_[i].rows;
    }
    readings_.clear();
    reading_of_.clear();
  };
  // A prompt that is being read must not keep newcomers out until it is read: a quarter of the rows is
  // for those who wait.
  const bool waits = admitting && line_.size() > 0;
  const std::uint32_t kept = waits && branches_ < options_.sequences_max ? left / 4 : 0;
  left -= kept;
  share();
  left += kept;
  if (!waits) return;

  const CacheStats cache = runtime_.cache().stats();
  const std::uint64_t held = cache.referenced_bytes + cache.fenced_bytes + cache.pinned_bytes +
                             branches_ * sequence_bytes(runtime_.geometry(), 1);
  room_bytes_ = cache.budget_bytes - std::min(cache.budget_bytes, held);
  stats_.waiting_for_prefix = 0;
  const std::function<Readiness(JobId)> ask = [this](JobId id) { return probe(*find(id)); };
  while (left > 0 && branches_ < options_.sequences_max) {
    const std::optional<JobId> id = line_.pick(ask);
    if (!id) break;
    Job& job = *find(*id);
    room_bytes_ -= std::min(room_bytes_, job.need_bytes);
    admit(job);
    left -= collect(job);
    share();
  }
}

// A job with several branches attaches one after the other, so that the blocks they share are
// computed once.
void Engine::resume_branches(Job& job) {
  while (job.attached < job.branch_count()) {
    const Branch b = job.branch(job.attached);
    if (!b.done && job.one_by_one && job.attached != job.first_open()) return;
    if (!b.done && shares_by_forks(job, job.attached)) {
      if (job.branch(job.first_open()).unread() > 0) return;
      fork_again(job, job.attached);
    } else if (!b.done) {
      if (follows(job, runtime_.cache().peek(*b.sequence))) return;
      runtime_.cache().attach(*b.sequence);
    }
    ++job.attached;
  }
}

// Whether recomputing a branch would also recompute the blocks it shared with the first branch. This
// is so when the job leaves nothing in the index, or takes nothing from it.
bool Engine::shares_by_forks(Job& job, std::uint32_t branch) {
  const KvPolicy& kv = job.request.kv;
  return (kv.write == KvWrite::none || !kv.reuse) && branch != job.first_open() &&
         job.answers[0].programs.empty() && job.branch(branch).sequence->length() == 0 &&
         !geometry(job).sparse();
}

// The branch starts from the prompt of the first one, as it did at first.
void Engine::fork_again(Job& job, std::uint32_t branch) {
  Sequence& s = *job.branch(branch).sequence;
  const auto prompt = static_cast<std::uint32_t>(job.request.prompt.size());
  Result<Sequence> fork = runtime_.cache().fork(*job.branch(job.first_open()).sequence);
  if (!fork.ok() || runtime_.cache().truncate(fork.value(), prompt) < prompt)
    return static_cast<void>(runtime_.cache().attach(s));
  runtime_.cache().extend(fork.value(), s.tokens().subspan(prompt));
  s = std::move(fork.value());
}

SequenceOptions Engine::sequence_options(const Job& job) const {
  const Request& r = job.request;
  return {.root = job.root,
          .token_capacity = static_cast<std::uint32_t>(r.prompt.size()) + r.tokens_max,
          .reuse = r.kv.reuse,
          .publish = r.kv.write != KvWrite::none,
          .publish_generated = r.kv.write == KvWrite::all && !geometry(job).sparse(),
          .serve_max = unscored(job),
          .goes_below = goes_below(runtime_, r.kv),
          .priority = r.kv.priority,
          .ttl = r.kv.ttl,
          .changes = job.changes,
          .request = static_cast<std::uint64_t>(job.id)};
}

// Gives a waiting job its cursor in the prefix index.
void Engine::place(Job& job) {
  const Nanoseconds before = clock_.now();
  const Request& r = job.request;
  ProgramList programs = make_programs(runtime_, r, job.root);
  SequenceOptions options = sequence_options(job);
  programs.open(options);
  job.answers.reserve(r.choices);
  Answer& a = job.answers.emplace_back();
  if (!snapshots_.place(job, programs, options.token_capacity, a)) {
    Result<Sequence> opened = runtime_.cache().open(options);
    if (!opened.ok()) return job.answers.clear();
    a.sequence = std::move(opened.value());
    a.programs = std::move(programs);
    runtime_.cache().place(a.sequence, r.prompt, job.keys);
  }
  job.lookup += clock_.now() - before;
  job.placed = true;
  ++placed_;
}

Readiness Engine::probe(Job& job) {
  if (!job.placed && placed_ < kPlacedMax) place(job);
  Attached seen;
  if (job.placed) seen = runtime_.cache().peek(*job.branch(job.first_open()).sequence);
  if (!std::exchange(job.probed, true)) job.first_seen_tokens = seen.tokens;
  if (has_its_share(job) || still_looking(job))
    return {.cached = seen.tokens, .verdict = Readiness::Verdict::later};
  if (follows(job, seen)) {
    ++stats_.waiting_for_prefix;
    return {.cached = seen.tokens, .verdict = Readiness::Verdict::later};
  }
  return {.cached = seen.tokens,
          .verdict =
              has_room(job, seen.tokens) ? Readiness::Verdict::ready : Readiness::Verdict::no_room};
}

// Whether the job should wait for other jobs that compute the prefix it needs. It waits as long as
// they make progress.
bool Engine::follows(Job& job, const Attached& seen) {
  if (seen.in_flight < runtime_.geometry().tokens_per_block) {
    job.follow_since = 0;
    return false;
  }
  if (job.follow_since == 0 || seen.tokens > job.follow_tokens) {
    job.follow_since = now_;
    job.follow_tokens = seen.tokens;
  }
  return now_ - job.follow_since < options_.follow_max;
}

}  // namespace quire
