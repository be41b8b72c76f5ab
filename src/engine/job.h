// engine/job.h - one request inside the engine: its answers, its blocks, where it stands.
//
// prepare_job() makes it on the submitting thread; then the Engine owns it. A job's branches are
// its sequences: one while the prompt is read, then one per choice or per beam.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/histogram.h"
#include "engine/beams.h"
#include "engine/draft/drafter.h"
#include "engine/explain.h"
#include "engine/loading.h"
#include "engine/program.h"
#include "engine/request.h"
#include "engine/runtime.h"
#include "engine/scheduler.h"
#include "engine/service.h"

namespace quire {

// One choice in the making.
struct Answer {
  Sequence sequence;
  ProgramList programs;     // what the request's policies do with it
  TokenId next = kNoToken;  // sampled, not yet read
  std::uint32_t generated = 0;
  TokenCounts counts;
  std::unique_ptr<TokenMask> mask;
  std::unique_ptr<Drafter> drafter;  // made when it is first asked
  Nanoseconds last_token_at = 0;
  bool done = false;
};

struct Branch {
  Sequence* sequence;
  const TokenId* next;  // to be read after all that the sequence knows; null: nothing yet
  bool done;
  Program* program;

  std::uint32_t unread() const {
    return static_cast<std::uint32_t>(sequence->tokens().size()) - sequence->length();
  }
};

// How many requests of a tenant wait, for the limit that submit() keeps.
struct TenantQueue {
  explicit TenantQueue(TenantQueue* of_all = nullptr) : all(of_all) {}
  std::atomic<std::uint32_t> waiting{0};
  TenantQueue* const all;  // counts those of every tenant
};

struct Job {
  JobId id{};
  Request request;
  std::shared_ptr<RequestSink> sink;
  std::vector<BlockKey> keys;                    // of the prompt's whole blocks
  std::shared_ptr<const PromptRecords> records;  // the same blocks below memory, or none
  std::vector<TokenId> end_tokens;               // that end an answer
  RequestRecord record;                          // moved to the log when it is submitted
  std::shared_ptr<TenantQueue> queue;
  bool counted = false;  // in `queue`, until its turn first comes
  bool drafts = false;   // its answers may be drafted

  // Set by the engine.
  enum class State : std::uint8_t { waiting, reading, answering, over };
  State state = State::waiting;
  WaitingLine::Entry entry;
  RootId root{};
  RootHold root_hold;
  std::vector<KeyChange> changes;  // of its whole text: a salt, a producer, where an adapter begins
  std::uint32_t adapted_from = 0;  // AdapterSet::begins_at
  std::vector<Answer> answers;
  std::optional<BeamSearch> beams;
  std::uint32_t attached = 0;  // branches before it hold blocks; those after are placed or parked
  bool one_by_one = false;  // its answers find no room together: a branch waits for those before it
  bool placed = false;
  std::uint32_t preemptions = 0;
  std::shared_ptr<Stored> stored;    // what tiers have of `records`, as they answer
  std::unique_ptr<Loading> loading;  // of branch 0, while the prompt is read
  bool told_admission = false;
  bool snapshot_kept = false;    // what its programs left at their cut was offered to others
  bool reserved = false;         // holds all the memory it may ever need
  std::uint32_t read_steps = 0;  // steps since its reading began
  Nanoseconds follow_since = 0;  // 0: waits for nobody's prefix
  std::uint32_t follow_tokens = 0, first_seen_tokens = 0;
  bool probed = false;
  std::uint64_t need_bytes = 0;  // what joining the batch would take, as last estimated

  Nanoseconds submitted = 0, deadline = 0, admitted = 0, first_token = 0;
  std::uint32_t cached = 0, waited = 0, written = 0, generated = 0;
  std::uint32_t drafted = 0, drafted_right = 0, predicted = 0, predicted_right = 0;
  std::uint64_t kv_bytes = 0, kv_bytes_whole = 0;
  ProgramReport programs;                // of answers that ended
  Nanoseconds lookup = 0;                // spent on finding its prefix
  std::uint32_t loaded = 0, remote = 0;  // tokens that came from a tier; from one that is shared
  Nanoseconds load_time = 0;
  GapSketch gaps;  // between the tokens of an answer
  Reason reason = Reason::none;
  std::vector<PromptLogprob> prompt_logprobs;
  std::vector<LeaseId> leases;
  std::string lease_problem;

  void leave_queue() {
    if (!std::exchange(counted, false)) return;
    --queue->waiting;
    if (queue->all) --queue->all->waiting;
  }
  bool ends(TokenId token) const {
    return std::ranges::find(end_tokens, token) != end_tokens.end();
  }
  std::uint32_t width() const { return std::max(request.choices, request.beams); }
  std::uint32_t branch_count() {
    return static_cast<std::uint32_t>(beams ? beams->open().size() : answers.size());
  }
  std::uint32_t first_open() {  // the first branch that is not done; there is one
    std::uint32_t i = 0;
    while (branch(i).done) ++i;
    return i;
  }
  Branch branch(std::uint32_t i) {
    if (beams) {
      Beam& b = beams->open()[i];
      return {&b.sequence, b.tokens.empty() ? nullptr : &b.tokens.back(), false,
              &answers[0].programs};
    }
    Answer& a = answers[i];
    return {&a.sequence, a.next == kNoToken ? nullptr : &a.next, a.done, &a.programs};
  }
  std::uint32_t generated_by(std::uint32_t i) {
    return beams ? static_cast<std::uint32_t>(beams->open()[i].tokens.size())
                 : answers[i].generated;
  }
};

// Checks the request and makes a job of it, on the submitting thread. A failure says what is wrong.
struct PreparedJob {
  std::unique_ptr<Job> job;
  Failure failure;
};
PreparedJob prepare_job(const Runtime& runtime, const ServiceOptions& options, Request request,
                        std::shared_ptr<RequestSink> sink);

// What sets the keys of a policy's blocks apart, for this prompt.
std::vector<KeyChange> key_changes(const KvPolicy& policy, std::span<const TokenId> prompt);
// Keys of the prompt's whole blocks under a policy.
std::vector<BlockKey> prompt_keys(const Runtime& runtime, std::span<const TokenId> prompt,
                                  const KvPolicy& policy);
// Whether its blocks may be stored below memory: they go to all tiers, so all must be allowed.
bool goes_below(const Runtime& runtime, const KvPolicy& policy);

}  // namespace quire
