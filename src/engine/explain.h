// engine/explain.h - why did this request miss? The last requests, what the cache gave them, and
// where their prompts parted from others'.
//
// Kept by the engine thread; read through Service::call.
//
//   service.call([id](EngineView& e) { return e.log.explain(id); });
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/request.h"
#include "kv/journal.h"

namespace quire {

enum class Outcome : std::uint8_t {
  hit,  // all but the tail that is computed anyway
  partial_hit,
  miss,
  disabled,
};
std::string_view outcome_name(Outcome outcome);

// What is remembered of a request. Times are those of the engine's clock.
struct RequestRecord {
  std::uint64_t number = 0;  // in the cache's journal, too: JournalRecord::request
  std::string id, family, model, tenant, salt, adapter;  // the adapters' digest
  std::string format;           // of its blocks, where it is not the server's
  std::vector<TokenId> prompt;  // empty where the log had to forget it: old, and very long
  std::uint32_t prompt_tokens = 0;
  std::vector<PromptSegment> segments;
  std::vector<std::uint64_t> keys;  // prefixes of its block keys, as the journal has them
  bool reuse = true;
  std::uint32_t cached_tokens = 0, waited_tokens = 0;
  Reason reason = Reason::none;  // why the next token was not served
  Nanoseconds submitted = 0, admitted = 0, first_token = 0, ended = 0;  // 0: not yet
  std::uint64_t journal_first = 0, journal_end = 0;  // records written while it was here
  Done done;
  Failure failure;
  std::vector<Finish> finishes;  // by choice
};

RequestRecord make_record(const Request& request);  // as it comes

struct SegmentHit {
  std::string name;
  std::uint32_t begin = 0, end = 0, cached = 0;
};

struct Explanation {
  std::string request_id;  // empty: asked for a prompt that was not run
  Outcome outcome = Outcome::miss;
  Reason reason = Reason::none;
  std::uint32_t prompt_tokens = 0, cached_tokens = 0, missed_tokens = 0;

  std::uint32_t at_token = 0, block = 0;   // the first that was not served
  std::string segment;                     // it lies in this one
  std::string compared_to;                 // the most similar earlier request, or none
  std::uint32_t shared_prefix_tokens = 0;  // with that one
  std::vector<TokenId> was, now;           // a few tokens around where they part

  // What else differs from `compared_to`.
  bool compare_missing = false;  // none of the requests to compare with is remembered
  bool other_model = false, other_family = false, other_salt = false, other_adapter = false;
  // The part of the prompt in which they part; empty: all that the other one had is there.
  std::string changed_segment;
  // These parts differ, wherever in the prompt the template shows them.
  bool other_tools = false, other_system = false;
  bool reused_all = false;  // every whole block that both begin with was served

  std::vector<SegmentHit> segments;
  struct Alternative {
    enum class Kind : std::uint8_t {
      move_text,    // what changes early could come after `token`
      same_salt,    // as `compared_to`
      same_format,  // as `compared_to`
      pin,          // the first `token` tokens were cached once
    };
    Kind kind = Kind::move_text;
    std::uint32_t token = 0, would_cache = 0;
  };
  std::vector<Alternative> alternatives;  // what would have hit more
  std::vector<JournalRecord> events;      // of this request, and evictions of its prefix
  double prefill_ms = 0, avoidable_ms = 0;
};

class RequestLog {
 public:
  explicit RequestLog(std::uint32_t records_max, std::uint64_t prompt_tokens_max = 8u << 20);

  void add(RequestRecord record);
  RequestRecord* find(std::uint64_t number);             // null: forgotten
  const RequestRecord* find(std::string_view id) const;  // the latest of that id, or null
  std::vector<const RequestRecord*> latest(std::size_t count) const;  // latest first

  // Compares with the first of `compare_to` that is remembered, or, where nobody is named, with the
  // most similar earlier request. Only requests of the same tenant are compared. Nothing when the log
  // has no such request.
  using Ids = std::span<const std::string>;
  std::optional<Explanation> explain(std::string_view id, const Journal& journal,
                                     Ids compare_to = {}) const;
  // Explains a prompt that was not run; `attached` is the result of KvCache::lookup.
  Explanation explain(const Request& request, const Attached& attached, Ids compare_to = {}) const;
  // The same for a request that was just admitted. It looks at few earlier requests, as the engine
  // waits.
  std::optional<Explanation> explain_now(std::uint64_t number, Ids compare_to) const;

  std::uint32_t tokens_per_block = 32;
  double token_seconds = 0;  // what computing a prompt token takes, as measured lately

  // Of all records: tokens of prompts, and what else is as long as a prompt, in tokens.
  std::uint64_t held() const { return held_; }

 private:
  static std::uint64_t weight(const RequestRecord& r);
  std::uint64_t first() const { return next_ - std::min<std::uint64_t>(next_, ring_.size()); }
  const RequestRecord* most_similar(const RequestRecord& to, std::uint64_t before,
                                    std::uint64_t count) const;
  Explanation explain(const RequestRecord& record, std::uint64_t before, std::uint64_t count,
                      Ids compare_to) const;
  void compare(const RequestRecord& record, const RequestRecord& other, Explanation& e) const;
  void add_events(const RequestRecord& record, const Journal& journal, Explanation& e) const;

  std::uint32_t records_max_;
  std::uint64_t prompt_tokens_max_, held_ = 0;
  std::vector<RequestRecord> ring_;  // the n-th ever added lies at n % records_max
  std::uint64_t next_ = 0;
  std::uint64_t prompts_from_ = 0;  // records before it have lost their prompts
  std::unordered_map<std::string, std::uint64_t> by_id_;
  std::unordered_map<std::uint64_t, std::uint64_t> by_number_;
};

}  // namespace quire
