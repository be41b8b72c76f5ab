// lab/replay/cache_events.h - traces that `quire serve --trace` writes (engine/cache_trace.h), read
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

namespace quire {

// The first line: the cache that was recorded.
struct TracedCache {
  std::uint32_t block_size = 0;
  std::uint64_t block_bytes = 0, cache_bytes = 0, capacity_blocks = 0;
  std::string format = {}, evictor = {};
};

struct CacheEvent {
  enum class Kind : std::uint8_t { attach, store, evict, end, preempt, other } kind = Kind::other;
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
  std::vector<std::uint64_t> keys = {};  // of the whole blocks of the prompt
  // end
  std::uint32_t generated_tokens = 0, loaded_tokens = 0;
  double queue_s = 0, first_token_s = 0, decode_s = 0;
};

struct CacheEvents {
  TracedCache cache;
  std::vector<CacheEvent> events;
  bool whole = true;  // false: the file met its bound, or records were lost
};

Result<TracedCache> parse_traced_cache(std::string_view line);
Result<CacheEvent> parse_cache_event(std::string_view line);
Result<CacheEvents> read_cache_events(const std::string& path);

}  // namespace quire
