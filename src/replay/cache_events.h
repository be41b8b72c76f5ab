// replay/cache_events.h - traces that `quire serve --trace` writes (engine/cache_trace.h), read
// back. A file is untrusted: every line is checked, and what is not known is skipped.
//
//   TRY(const CacheEvents trace, read_cache_events(path));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/step_costs.h"
#include "kernels/storage.h"
#include "replay/lines.h"

namespace quire {

inline constexpr std::uint64_t kTraceKeysMax = 1u << 28;  // of one file

// The first line: the server that was recorded. What an older file does not say is 0 or empty.
struct TracedCache {
  std::uint32_t block_size = 0;
  std::uint64_t block_bytes = 0, cache_bytes = 0, capacity_blocks = 0;
  std::string format = {}, evictor = {};
  std::vector<LayerShape> layers = {};  // of the model
  std::uint32_t step_tokens = 0, prompt_tokens = 0, sequences_max = 0, context = 0;
};

struct CacheEvent {
  enum class Kind : std::uint8_t {
    attach,
    store,
    evict,
    end,
    preempt,
    costs,
    other,
  } kind = Kind::other;
  Nanoseconds time = 0;
  std::uint64_t request = 0;
  std::uint64_t key = 0;    // store, evict
  std::uint32_t block = 0;  // store: its place in the sequence
  std::string reason = {};  // all but store
  // attach
  Nanoseconds arrived = 0;
  std::uint32_t prompt_tokens = 0, hit_tokens = 0;
  std::string tenant = {}, salt = {};  // hashes, or empty
  bool reuse = true;
  std::string write = {};  // "prompt" or "none"; empty: all
  std::uint8_t priority = 50;
  double ttl_s = 0;
  std::vector<std::uint64_t> keys = {};  // of the whole blocks of the prompt
  // end
  std::uint32_t generated_tokens = 0, choices = 1, loaded_tokens = 0;
  double queue_s = 0, first_token_s = 0, decode_s = 0;
  StepCosts costs = {};  // costs
};

struct CacheEvents {
  TracedCache cache;
  std::vector<CacheEvent> events;
  StepCosts costs;    // the last that were recorded, or all 0
  bool whole = true;  // false: the file met its bound, or records were lost
};

Result<TracedCache> parse_traced_cache(std::string_view line);
Result<CacheEvent> parse_cache_event(std::string_view line);
Result<CacheEvents> read_cache_events(const std::string& path);
inline constexpr std::uint64_t kTraceEventsMax = 1u << 24;  // that a cache or a request feels
Result<CacheEvents> read_cache_events(LineReader lines, std::uint64_t events_max = kTraceEventsMax);

}  // namespace quire
