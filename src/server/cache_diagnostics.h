// server/cache_diagnostics.h - why a request did not reuse what an earlier one left, in vendors' words.
//
// Anthropic's `diagnostics` and the `prompt_cache_diagnostics` of Responses are the same question. A
// dialect's parser names the earlier answer. The engine compares both prompts when it admits the
// request, and the writer is told before begin() and whole():
//
//   asked.compare_to = body["diagnostics"]["previous_message_id"];          // in the parser
//   void explained(const Explanation& e) override { why_ = diagnose_cache(e); }
//   message["diagnostics"] = anthropic_diagnostics(why_);                   // null: all was reused
//
// The engine remembers the last --explain-keep requests, so nothing is kept for this alone.
#pragma once

#include <cstdint>

#include "base/json.h"
#include "engine/explain.h"

namespace quire {

enum class CacheChange : std::uint8_t {
  none,   // all that the earlier request had was reused
  model,  // these five: what differs first
  salt,
  tools,
  system,
  messages,
  compacted,        // the oldest messages were left out, because the context is full
  unknown_request,  // the earlier request is not remembered
  unavailable,      // nothing differs: the blocks were evicted, or nobody can say
};

struct CacheDiagnosis {
  CacheChange change = CacheChange::none;
  std::uint32_t missed_tokens = 0;    // of the prompt, not served from the cache
  std::uint32_t reusable_tokens = 0;  // that both prompts begin with
};

CacheDiagnosis diagnose_cache(const Explanation& e);

// {"cache_miss_reason":{"type":"system_changed","cache_missed_input_tokens":n}}, or null.
Json anthropic_diagnostics(const CacheDiagnosis& d);
// {"type":"cache_hit"}, {"type":"cache_miss","reason":"input_changed",...} and so on.
Json openai_diagnostics(const CacheDiagnosis& d);

}  // namespace quire
