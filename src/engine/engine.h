// engine/engine.h - everything that runs on the engine thread: jobs, the batch of each step, and
// the tokens that are sampled from its logits.
//
// One thread, no locks. A Service or a Client drives it; tests may drive it step by step.
//
//   Engine engine(runtime, options, log, clock);
//   engine.submit(std::move(job));
//   while (engine.has_jobs()) engine.step();
//
//   engine.cc         jobs: submitted, admitted, ended; the step
//   engine_batch.cc   which rows a step has
//   engine_drafts.cc  guesses that rows of a step check, and what became of them
//   engine_room.cc    room for them: admission, preemption
//   engine_load.cc    prompts whose blocks come from a tier
//   engine_draw.cc    what is wanted of the rows, and submitting them
//   engine_ahead.cc   completing and committing them, and a step behind another one that still runs
//   engine_sample.cc  from logits to tokens, reported to the sinks
//   engine_report.cc  what it cost
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/draft/pace.h"
#include "engine/explain.h"
#include "engine/job.h"
#include "engine/prefill_cost.h"
#include "engine/runtime.h"
#include "engine/scheduler.h"
#include "engine/service.h"
#include "engine/snapshots.h"
#include "engine/stepper.h"

namespace quire {

class Engine {
 public:
  Engine(Runtime& runtime, const ServiceOptions& options, RequestLog& log, const Clock& clock);
  ~Engine();  // fails what is left

  void submit(std::unique_ptr<Job> job);
  void cancel(JobId id);
  void finish(JobId id, std::uint32_t choice);
  void fail_all(FailureKind kind, const std::string& message);

  bool has_jobs() const { return !jobs_.empty(); }
  std::size_t job_count() const { return jobs_.size(); }
  // Runs one forward pass and reports its tokens. False: there was nothing to run.
  bool step();
  // Nothing is to run for a while, or ever again: what is worth keeping is written to the tiers, for
  // at most this long.
  void save_below(Nanoseconds limit);
  void drain_below();  // hears what tiers have done
  // For idle times: offers the tiers what they had no room for, a little per call. False: all is
  // written that is wanted.
  bool write_below();

  const ServiceStats& stats();  // gauges and the cache's counters brought up to date
  ServiceStats& counters() { return stats_; }
  // Of one root, or all.
  void drop_snapshots(std::optional<RootId> root = std::nullopt) { snapshots_.drop(root); }
  std::vector<ActiveRequest> active() const;

 private:
  // What one item of a step is for.
  struct Row {
    Job* job;  // null: it ended while the step ran
    std::uint32_t branch;
    std::uint32_t past;         // tokens before its first row
    std::uint32_t first_logit;  // its rows of logits
    std::uint32_t logit_count;
  };
  struct Task {  // one token to sample, and more where guesses come true
    Job* job;
    std::uint32_t answer;
    std::uint32_t logit;  // row
    bool shared;          // others sample from the same row
    Choice choice;
    bool complete;              // the mask wants no more
    std::uint32_t drafted = 0;  // rows after `logit`, one for each guess
    std::uint32_t item = 0;     // of the step, where there are any
  };
  struct SamplingWorker {
    explicit SamplingWorker(const VectorKernels& vector, std::uint32_t vocabulary)
        : sampler(vector, vocabulary), bits((vocabulary + 31) / 32) {}
    Sampler sampler;
    std::vector<float> row;
    std::vector<std::uint32_t> bits;
  };

  // engine.cc
  Job* find(JobId id);
  Result<RootId> root_of(const Job& job);
  const Geometry& geometry(const Job& job) const { return runtime_.cache().geometry(job.root); }
  void admit(Job& job);
  void tell_admission(Job& job);
  bool run_step();
  void prompt_read(Job& job);
  void settle(Job& job);
  void share_kept(Job& job);
  void end_unanswered(Job& job);
  void end_answer(Job& job, std::uint32_t index, Finish how);
  void keep_session(Job& job, TokenId next);
  void complete(Job& job);
  void fail(Job& job, FailureKind kind, std::string message);
  void end(Job& job, Reason reason);
  void sweep();  // forgets the jobs that are over
  void measure(std::uint32_t rows, Nanoseconds forward);
  void expire();
  void note(const Job& job, Reason reason, std::uint32_t tokens = 0, std::uint64_t bytes = 0);
  double since(Nanoseconds from) const { return static_cast<double>(now_ - from) * 1e-9; }

  // engine_batch.cc
  void compose(bool admitting);
  void choose_rows(bool admitting);
  void group_by_prefix();
  std::uint32_t prompt_tokens() const;
  std::uint32_t unscored(const Job& job) const;
  void add_row(Job& job, std::uint32_t branch, std::uint32_t rows);
  void resume_branches(Job& job);
  bool shares_by_forks(Job& job, std::uint32_t branch);
  void fork_again(Job& job, std::uint32_t branch);
  std::uint32_t collect(Job& job);
  void place(Job& job);
  SequenceOptions sequence_options(const Job& job) const;
  bool goes_on(Job& job);
  Readiness probe(Job& job);
  bool follows(Job& job, const Attached& seen);
  bool has_room(Job& job, std::uint32_t cached);
  bool has_its_share(const Job& job) const;  // its tenant, of those that decode together
  std::uint32_t places_of(TenantId tenant) const;
  void yield_place();
  std::uint64_t full_bytes(const Job& job) const;
  bool make_room();
  bool restart_parked();
  bool hold_back(Job& job);
  void preempt(Job& job);
  double wanted_tokens(const Job& victim);
  Preempt cheaper_preemption(const Sequence& s, double wanted) const;

  // engine_load.cc
  void look_below(Job& job);
  bool still_looking(const Job& job) const;
  std::uint32_t stored_end(const Job& job, const Sequence& s, std::uint32_t from) const;
  void begin_loading(Job& job);
  bool take_stored(Job& job);
  bool arrives(Job& job);
  void end_loading(Job& job);
  bool give_up_loading();

  // engine_drafts.cc
  void add_drafts();
  void offer_draft(std::uint32_t row);
  bool drop_drafts();
  void number_logits();
  void verify(Task& task, std::span<float> logits, SamplingWorker& worker);
  void accept_draft(Task& task);

  // engine_ahead.cc
  bool steady() const;
  void go_ahead();
  void drop_ended();
  void drop_incomplete();
  Status complete_step(std::span<float>& logits);

  // engine_draw.cc
  Status submit_step();
  bool best_will_do() const;
  static bool logprobs_wanted(std::span<const Row> rows);
  void describe_draws();
  bool describe_draw(const Row& row, std::uint32_t which, DrawRow& draw);

  // engine_sample.cc
  void use_logits(std::span<float> logits);
  void score_prompt(const Row& row, std::span<const float> logits);
  void begin_answers(Job& job, std::uint32_t logit_row, std::span<const float> logits);
  void advance_beams(Job& job, std::span<const float> logits);
  void sample(std::span<float> logits);
  bool few_to_sample() const;
  void sample_one(Task& task, std::span<float> logits, SamplingWorker& worker);
  bool draw(const Task& task, std::uint32_t which, std::span<float> logits, SamplingWorker& worker,
            Choice& choice);
  void accept(Task& task);
  void accept_token(Job& job, std::uint32_t index, const Choice& choice, bool complete);
  void tell_token(Job& job, std::uint32_t index, const Choice& choice, Nanoseconds& last);

  Runtime& runtime_;
  Stepper stepper_;
  Snapshots snapshots_;
  const ServiceOptions& options_;
  RequestLog& log_;
  const Clock& clock_;
  WaitingLine line_;
  std::unordered_map<JobId, std::unique_ptr<Job>> jobs_;
  std::vector<Job*> running_;  // in order of admission
  std::set<std::pair<Nanoseconds, JobId>> deadlines_;
  std::unordered_map<std::string, RootId> roots_;  // as last found; some may be gone
  std::vector<JobId> over_;                        // to be swept
  std::uint32_t placed_ = 0;                       // waiting jobs with a cursor in the index
  Nanoseconds now_ = 0;
  std::uint32_t offered_ = 0;  // nodes before it were offered to the tiers in idle times
  bool worked_ = false;        // for a job that has no rows in the step yet
  double work_rows_ = 0;       // what programs may still do before this step's rows
  ServiceStats stats_;
  PrefillCost prefill_cost_;
  double cost_reported_ = 0;  // to the cache, of a token

  // Of the step at hand; they keep their capacity.
  std::vector<StepItem> items_;
  std::vector<Row> rows_;
  std::optional<Step> step_;   // the step at hand, submitted and not completed
  bool may_go_ahead_ = false;  // the next one may be submitted before this one is completed
  struct Ahead {               // the one after it, submitted as well
    std::vector<StepItem> items;
    std::vector<Row> rows;
    std::vector<std::uint32_t> from;  // items of the one before
    std::optional<Step> step;
  } ahead_;
  std::vector<StepItem> items_before_;  // these three: of group_by_prefix
  std::vector<Row> rows_before_;
  struct Prefix {
    const ArenaOffset* table;
    std::uint32_t splits;  // of attention, in whole
  };
  std::vector<Prefix> prefixes_;
  std::vector<Reading> readings_;
  std::vector<std::pair<Job*, std::uint32_t>> reading_of_;  // by index of readings_
  std::vector<std::uint32_t> order_;
  std::vector<Task> tasks_;
  std::span<const BestToken> best_;  // of the step at hand, if it has no logits
  std::span<const Drawn> drawn_;     // of the step at hand, if some of its rows have no logits
  std::vector<DrawRow> draws_;
  std::vector<DrawChange> changes_;
  std::uint32_t draw_lists_ = 0;
  DraftPace pace_;
  SourceRates draft_rates_;
  std::vector<DraftOffer> offers_;
  std::vector<Running> candidates_;
  std::vector<TenantId> waiting_;  // these two: of yield_place
  std::vector<std::uint32_t> places_;
  std::vector<SamplingWorker> workers_;
  std::uint32_t branches_ = 0;        // that run, or are to run after the prompt
  std::uint64_t room_bytes_ = 0;      // what admissions of this step may still take
  std::uint64_t reserved_bytes_ = 0;  // promised to jobs that are protected
};

}  // namespace quire
