// engine/scheduler.h - which job runs next, which is preempted, and how many rows each prompt gets.
// Pure policy: no model, no cache, no clock. The Engine uses it.
//
// Requests wait in one line per tenant. Tenants take turns by tokens served (virtual time), so ten
// thousand requests of one tenant do not delay the others. Within a tenant the line is ordered by
// arrival. Each level of priority counts as a fixed time of arriving earlier, so low priorities
// wait longer, but not for ever. Among the first few jobs of the line, the one with the most cached
// tokens goes first. A job is passed at most passes_max times, so the k-th in line is served after
// at most k + passes_max others of its tenant.
//
//   WaitingLine line({});
//   line.add(JobId{1}, {.tenant = line.tenant("acme"), .arrived = now});
//   auto next = line.pick([&](JobId job) { return Readiness{.cached = ..., .verdict = ...}; });
//   line.charge(tenant, 512);                      // 512 tokens were served to it
//
// Costs O(window + log n), whatever the length of the line.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"

namespace quire {

enum class JobId : std::uint64_t {};
enum class TenantId : std::uint32_t {};

struct SchedulerOptions {
  std::uint32_t window = 32;                // of a line: who may pass the first
  std::uint32_t passes_max = 16;            // how often one may be passed
  Nanoseconds priority_step = 500'000'000;  // what a level of priority is worth
  std::uint32_t tenants_tried = 16;         // per pick, when those whose turn it is cannot go
};

// What is known about a waiting job when its turn might come.
struct Readiness {
  enum class Verdict : std::uint8_t {
    ready,
    no_room,  // its turn may be taken by smaller ones, for a while
    later,    // better off waiting: what it needs is being computed
  };
  std::uint32_t cached = 0;  // tokens that need not be computed
  Verdict verdict = Verdict::ready;
};

// A job's place in the order of arrival, moved ahead or back by its priority.
struct Standing {
  Nanoseconds time = 0;
  JobId id{};
  auto operator<=>(const Standing&) const = default;
};

class WaitingLine {
 public:
  explicit WaitingLine(const SchedulerOptions& options) : options_(options) {}

  TenantId tenant(std::string_view name);  // interned
  std::size_t tenants() const { return tenants_.size(); }

  struct Entry {
    TenantId tenant{};
    std::int32_t priority = 0;
    Nanoseconds arrived = 0;
  };
  Standing standing(JobId id, const Entry& entry) const {
    return {entry.arrived - entry.priority * options_.priority_step, id};
  }
  void add(JobId id, const Entry& entry);
  void remove(JobId id);  // that is in it
  bool contains(JobId id) const { return entries_.contains(id); }
  std::size_t size() const { return entries_.size(); }

  // The job that runs next; it leaves the line. None: no job can run, or a job that may not be
  // passed any more has no room yet. `probe` is called for a bounded number of jobs.
  std::optional<JobId> pick(const std::function<Readiness(JobId)>& probe);

  // Those whose jobs wait, in the order of their turns; not all if there are many.
  void waiting(std::vector<TenantId>& tenants) const;

  void charge(TenantId tenant, std::uint64_t tokens);
  std::uint64_t served(TenantId tenant) const { return at(tenant).served; }

 private:
  struct Place {
    Entry entry;
    std::uint32_t passed = 0;
  };
  struct Tenant {
    std::string name;
    std::uint64_t turn = 0;    // virtual time: the least goes first
    std::uint64_t served = 0;  // tokens, ever
    std::set<Standing> line;
  };
  enum class Found : std::uint8_t { one, nobody, blocked };

  Tenant& at(TenantId t) { return tenants_[static_cast<std::size_t>(t)]; }
  const Tenant& at(TenantId t) const { return tenants_[static_cast<std::size_t>(t)]; }
  Found pick_of(Tenant& tenant, const std::function<Readiness(JobId)>& probe, JobId& found);

  SchedulerOptions options_;
  std::vector<Tenant> tenants_;
  std::unordered_map<std::string, TenantId> by_name_;
  std::unordered_map<JobId, Place> entries_;
  std::set<std::pair<std::uint64_t, TenantId>> turns_;  // of tenants with a line
  std::uint64_t now_turn_ = 0;   // of who was last served: where newcomers start
  std::vector<Place*> skipped_;  // scratch of pick
};

// A running job, as a candidate for preemption.
struct Running {
  Standing standing;
  bool protect = false;  // has given way often enough
};

// The index of the job to preempt when memory is short: the one that came last, but never the first
// of all and never a protected one. None: there is no such job.
std::optional<std::size_t> pick_victim(std::span<const Running> running);

// A sequence that is preempted, and the memory around it. All in tokens.
struct GivingWay {
  double length = 0;  // that it holds
  double whole = 0;   // of these, in published blocks: they stay cached when it lets go
  double free = 0;    // room that is left
  double cached = 0;  // of others, held by nobody
  double wanted = 0;  // room that those who go on will take until it can come back
  double reuse = 0;   // share of what is cached that is asked for again
};

// Tokens that must be computed again after a preemption: of the sequence, and of cached blocks that
// other requests would have used.
struct PreemptLoss {
  double own = 0, others = 0;
};

// If the sequence releases its blocks, its unfinished block is lost. Its whole blocks stay cached
// and are evicted like all others.
PreemptLoss loss_of_recompute(const GivingWay& g);
// If it is parked, its blocks are evicted last, after all other cached blocks.
PreemptLoss loss_of_park(const GivingWay& g);

// A prompt being read: how many rows of this step it gets.
struct Reading {
  std::uint32_t remaining = 0;
  std::uint32_t rows_max = 0xffffffffu;
  std::uint32_t steps = 0;  // since it began
  // Rows are read in multiples of `together` (blocks of a sparse prompt), except for the last
  // `loose`.
  std::uint32_t together = 1, loose = 0;
  std::uint32_t rows = 0;  // the answer
};

// Shares the budget of rows, shortest prompt first, so that a long prompt does not delay short
// ones. With every step a prompt counts as `budget / 4` tokens shorter, so a long one is read in
// the end.
void share_rows(std::uint32_t budget, std::span<Reading> readings,
                std::vector<std::uint32_t>& order);

}  // namespace quire
