// replay/asks.h - what a trace asks for, whatever cache it was recorded with: arrivals, lengths, and
// the text as keys of equal pieces. Made of our own traces and of Mooncake's.
//
//   TRY(const AskedTrace trace, read_asks(path));
//   for (const Ask& a : trace.asks) {
//     const std::vector<TokenId> text = made_up_tokens(a);     // prompt and answer
//   }
//
// Tokens are made up: equal keys give equal tokens, and nothing else does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/token.h"
#include "engine/request.h"
#include "replay/cache_events.h"
#include "replay/mooncake.h"

namespace quire {

struct Ask {
  std::uint64_t number = 0;  // no two are equal
  Nanoseconds arrival = 0;   // after the first
  std::uint32_t prompt_tokens = 0, answer_tokens = 0;
  std::uint32_t piece = 32;              // tokens that a key stands for
  std::uint32_t keyed_tokens = 0;        // the first ones, which follow from keys
  std::vector<std::uint64_t> keys = {};  // one after the other; 0: its own text
  std::string tenant = {}, salt = {};
  bool reuse = true;
  KvWrite write = KvWrite::all;
  std::uint8_t priority = 50;
  Nanoseconds ttl = 0;
  // What the recorded server did; 0 where nobody recorded it.
  std::uint32_t recorded_hit_tokens = 0;
  double recorded_first_token_s = 0, recorded_decode_s = 0;
};

struct AskedTrace {
  std::vector<Ask> asks;  // in order of arrival
  TracedCache recorded;   // of the server that recorded it; block_size 0: no server did
  StepCosts costs;        // as recorded, or guessed from its times; all 0: neither
  bool whole = true;

  std::uint64_t prompt_tokens() const;
  std::uint64_t answer_tokens() const;
};

AskedTrace asks_of(const CacheEvents& trace);
AskedTrace asks_of(std::vector<TraceRequest> trace);

// Of either format: our own begins with {"quire_trace": ...}.
Result<AskedTrace> read_asks(const std::string& path);
Result<AskedTrace> parse_asks(std::string text, const std::string& name,
                              std::uint64_t events_max = kTraceEventsMax);

inline constexpr std::uint32_t kMadeUpVocabulary = 1u << 22;
// The tokens of the first `limit` positions, or of all.
std::vector<TokenId> made_up_tokens(const Ask& ask, std::uint32_t limit = UINT32_MAX,
                                    std::uint32_t vocabulary = kMadeUpVocabulary);

}  // namespace quire
