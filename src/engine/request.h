// engine/request.h - what a client asks of the engine, and what the engine reports while it
// answers.
//
// Tokens in, tokens out: text, templates, stop strings and JSON stay with the caller
// (engine/answer_text.h turns tokens into text). Filled by the server's dialects, by tests and by
// load generators:
//
//   Request r{.id = "req_1", .prompt = ids, .sampling = {.temperature = 1, .seed = 7},
//             .tokens_max = 64, .choices = 3};
//   Submitted s = service.submit(std::move(r), sink);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/token.h"
#include "engine/sampler.h"
#include "kernels/storage.h"
#include "kv/cache.h"
#include "kv/reason.h"
#include "kv/retain/policy.h"
#include "kv/select/policy.h"
#include "kv/tier/tier.h"

namespace quire {

class SessionTurn;  // engine/sessions.h

// Which tokens may come next: a grammar, seen from the engine. One per choice, called by one
// compute thread at a time, so it must answer quickly: work that takes long may start in accept()
// and be waited for in fill(), which comes after the next forward pass.
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Bit t % 32 of word t / 32 says whether token t may come now; `bits` has room for the
  // vocabulary. False: every token may come, and `bits` was not changed.
  virtual bool fill(std::span<std::uint32_t> bits) = 0;
  // The token was chosen. False: the answer is complete, nothing may follow.
  virtual bool accept(TokenId token) = 0;
  // Another choice begins at the same place.
  virtual std::unique_ptr<TokenMask> fork() const = 0;
};

enum class KvWrite : std::uint8_t { all, prompt, none };

struct KvPolicy {
  bool reuse = true;
  KvWrite write = KvWrite::all;
  std::string tenant = {};  // part of the root: tenants never share
  std::string salt = {};    // part of every key, besides the tenant
  // Part of every key, too: blocks that something else than this model's pass may have made, and
  // that serve one session and its forks alone.
  std::string producer = {};
  std::shared_ptr<const StoragePolicy> storage = {};  // part of the root; null: the server's
  std::shared_ptr<const RetainPolicy> retain = {};    // null: everything stays
  // What answers read of it; null: everything. What prompts read is in `storage`.
  std::shared_ptr<const SelectPolicy> select = {};
  // Texts of the prompt that are cached behind other prefixes are reused, and this share of their
  // tokens is computed again (engine/blend.h); none: prefixes only.
  std::optional<double> blend = {};
  // Bytes of the cache that the request may hold at once. If that is less than it needs, its cold blocks
  // lie in tiers and are read for every step (engine/spilling.h). 0: all of it is in the cache.
  std::uint64_t resident = 0;
  // Its blocks may be stored in tiers of this machine, and in shared ones, and come from there.
  bool disk = true, remote = true;
  bool may_use(const TierTraits& tier) const { return tier.shared ? remote : disk; }
  bool convert =
      false;  // in a lossy format: exact blocks that are cached are encoded, not computed
  std::uint8_t priority = 50;  // 0-100, of the blocks it leaves
  Nanoseconds ttl = 0;         // soft lease on all it writes; 0: none
  // Taken on its own blocks when its prompt has been computed.
  std::vector<LeaseRequest> leases = {};
};

// What an embedding is made of (engine/pooler.h): the state of the last token, the mean of all states,
// or the state of the first token.
enum class Pooling : std::uint8_t { none, last, mean, cls };
std::optional<Pooling> find_pooling(std::string_view name);  // "last", "mean" or "cls"

// A named range of the prompt ("system[0]", "messages[3]"), for explain.
struct PromptSegment {
  std::string name;
  std::uint32_t begin = 0, end = 0;
};

struct Request {
  std::string id = {};      // as the client knows it; explain finds it by this
  std::string family = {};  // prompt_cache_key: requests that expect to share
  // Whose it is when places and turns are shared out; empty: its tenant's. There must not be many
  // different ones.
  std::string client = {};
  std::string model = {};  // as the client named it; explain compares it
  std::vector<TokenId> prompt = {};
  std::vector<PromptSegment> segments = {};

  SamplingOptions sampling = {};
  std::uint32_t tokens_max = 16;  // 0: only reads the prompt (warms the cache, scores it)
  std::uint32_t tokens_min = 0;   // end and stop tokens are not drawn before this many tokens
  bool cut_tokens_max = false;    // to what context and cache can hold, instead of refusing
  bool ignore_end = false;        // the model's end tokens are tokens like others
  std::vector<TokenId> stop_tokens = {};

  // n, or best_of: all choices are reported as they come. For best_of the caller ranks them
  // (AnswerText::mean_logprob).
  std::uint32_t choices = 1;
  // > 0: beam search of that width; the `choices` best are reported at the end, best first.
  std::uint32_t beams = 0;
  float length_penalty = 1;
  std::uint32_t chunk = 0;  // most prompt tokens that one step reads; 0: as many as fit

  // >= 0: log-probabilities of the prompt's own tokens from `prompt_logprobs_from` on, with this many
  // alternatives. The cache keeps no logits, so a prefix is reused only up to there.
  std::int32_t prompt_logprobs = -1;
  std::uint32_t prompt_logprobs_from = 1;  // nothing is known of the first token
  // Other than none: the prompt's states, pooled, are Done::pooled. With tokens_max 0.
  Pooling pooling = Pooling::none;

  std::unique_ptr<TokenMask> mask = {};  // none: everything may come
  std::vector<TokenId> prediction = {};  // what the client expects: drafts are made of it
  bool explain = false;                  // Admitted::explanation is wanted
  // The explanation compares with the first of these requests that is remembered; empty: with the most
  // similar one of late.
  std::vector<std::string> compare_to = {};
  KvPolicy kv = {};
  std::shared_ptr<SessionTurn> session = {};  // that it goes on with; none: it stands alone
  std::int32_t priority = 0;                  // -100..100: higher goes first, and is preempted last
  Nanoseconds deadline = 0;  // after submit: fails when it has not finished by then; 0: none

  const std::string& shares_as() const { return client.empty() ? kv.tenant : client; }
};

// Why a request was refused or broken off. Names as in error bodies: failure_name().
enum class FailureKind : std::uint8_t {
  none,
  invalid,         // a field makes no sense; the message names it                       400
  context_length,  // the prompt is longer than the context                              400
  kv_capacity,     // could not fit the cache even alone                                 400
  queue_full,      // too many wait; try again                                           429
  draining,        // the service takes no more work                                     503
  no_room,         // admitted, and pins left no room to go on                           503
  deadline,        // took longer than it was given                                      408
  numeric,         // the model produced NaN or Inf                                      500
  cancelled,       // by cancel()                                                        499
  device,          // the GPU does not answer any more                                   503
  quota,           // could not fit its tenant's quota even alone                        429
  model_file,      // what its policy reads of the model's file is gone                  503
  tier,            // a tier lost what it needs, or does not take it                     503
};
inline constexpr std::size_t kFailureKinds = 14;
std::string_view failure_name(FailureKind kind);  // "kv_capacity_exceeded", "queue_full", ...

struct Failure {
  FailureKind kind = FailureKind::none;
  std::string message;              // what failed, on what, and what would help
  std::uint32_t retry_after_s = 0;  // where trying again makes sense
};

enum class Finish : std::uint8_t {
  length,
  end_token,    // one of the model's, or of Request::stop_tokens
  stop_string,  // Service::finish()
  mask,         // the mask said that the answer is complete
  cancelled,
};
std::string_view finish_name(Finish finish);  // "length" or "stop", as clients know them

struct Explanation;  // engine/explain.h

struct Admitted {
  std::uint32_t prompt_tokens = 0;
  std::uint32_t cached_tokens = 0;  // need not be computed; at most prompt_tokens - 1
  std::uint32_t waited_tokens = 0;  // of these: others computed them while this one waited
  std::uint32_t loaded_tokens = 0;  // of the cached: they came from a tier
  std::uint32_t remote_tokens = 0;  // of these: from one that machines share
  Reason reason = Reason::none;     // why the next token was not served
  double queue_seconds = 0;
  std::shared_ptr<const Explanation> explanation = {};  // where Request::explain asks for it
};

struct PromptLogprob {
  TokenId token = 0;
  float logprob = 0;                       // before prompt_logprobs_from: not there, 0
  std::vector<TokenLogprob> alternatives;  // most likely first; empty at position 0
};

struct Done {
  std::uint32_t prompt_tokens = 0, cached_tokens = 0;
  std::uint32_t loaded_tokens = 0;       // of the cached: they came from a tier
  std::uint32_t remote_tokens = 0;       // of these: from one that machines share
  std::uint32_t approximate_tokens = 0;  // reused off the prefix
  bool converted = false;                // began with blocks that were encoded, not computed
  std::uint32_t computed_tokens = 0;     // prompt tokens that were computed, once for all choices
  std::uint32_t written_tokens = 0;      // of whole blocks that this request left in the cache
  std::uint32_t generated_tokens = 0;    // of all choices, as sampled
  std::uint32_t drafted_tokens = 0, accepted_tokens = 0;      // guesses, and those that came true
  std::uint32_t predicted_accepted = 0, predicted_wrong = 0;  // of these, out of `prediction`
  std::uint32_t preemptions = 0;
  std::uint64_t kv_bytes = 0;        // of its longest choice, shared blocks included
  std::uint64_t kv_bytes_whole = 0;  // what kv_bytes would be if every token had stayed
  std::uint64_t kv_bytes_read = 0;   // by answers that select, and what there was to read
  std::uint64_t kv_bytes_readable = 0;
  std::uint64_t cold_bytes = 0, cold_hidden_bytes = 0;  // kv.resident: as in ProgramReport
  std::uint32_t cold_blocks = 0, lost_blocks = 0;
  BlockKey node;  // of the last whole block of its prompt; zero: there is none
  Reason reason = Reason::none;
  double queue_seconds = 0, prefill_seconds = 0, first_token_seconds = 0, decode_seconds = 0;
  Nanoseconds submitted = 0;                      // on the engine's clock
  double lookup_seconds = 0;                      // finding its prefix in the index
  double load_seconds = 0;                        // waiting for blocks from a tier
  double token_gap_median = 0, token_gap_99 = 0;  // seconds between tokens of one choice
  double saved_prefill_seconds = 0;  // estimate: what the cached tokens would have cost
  std::vector<LeaseId> leases;       // one per lease of KvPolicy::leases; 0: it could not be taken
  std::string lease_problem;         // why one could not
  std::vector<float> pooled = {};    // as Request::pooling says, not normalized; else empty
};

// Where the engine reports what happens to a request. The engine thread calls and waits, so enqueue
// and return. The order of calls: admitted once (a preempted request is not admitted again),
// prompt_logprobs, tokens and finishes, then exactly one of done and failed. After that the engine
// forgets the sink.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  virtual void admitted(const Admitted&) {}
  virtual void prompt_logprobs(std::vector<PromptLogprob>) {}
  virtual void token(std::uint32_t choice, const Choice& token) = 0;
  virtual void finished(std::uint32_t choice, Finish how) = 0;
  virtual void done(const Done& done) = 0;
  virtual void failed(const Failure& failure) = 0;
};

}  // namespace quire
