// replay/cache_replay.h - a recorded trace through the real KV cache, in the recorded order and
// in the recorded time, with the recorded memory and evictor or with others.
//
// Tokens are made up from the keys: equal keys, equal tokens. Blocks hold no numbers, so a large
// cache costs little memory. Prompt tokens that the replayed cache lacks and the recorded one had
// are computed before the request's next block is stored.
//
//   TRY(const CacheReplay r, replay_cache(trace, {.capacity_blocks = 4096, .evictor = "lru"}));
#pragma once

#include <array>
#include <string>

#include "kv/reason.h"
#include "replay/cache_events.h"

namespace quire {

struct CacheReplayOptions {
  std::uint64_t capacity_blocks = 0;  // 0: as recorded
  std::string evictor = {};           // empty: as recorded
};

struct CacheReplay {
  std::uint64_t capacity_blocks = 0;
  std::string evictor;
  std::uint64_t requests = 0, prompt_tokens = 0;
  std::uint64_t blocks = 0, hit_blocks = 0;  // whole blocks of prompts, and those served
  std::uint64_t recorded_hit_blocks = 0, recorded_hit_tokens = 0;
  std::uint64_t differing = 0;  // requests that were served another number of blocks than recorded
  std::uint64_t no_room = 0;    // steps that could not be made: the cache is too small
  std::array<std::uint64_t, kReasonCount> evictions{};
  // Estimates: the recorded times, and the time per computed prompt token that follows from them.
  double token_s = 0, first_token_s = 0, recorded_first_token_s = 0;  // means

  double hit_share() const {
    return blocks == 0 ? 0 : static_cast<double>(hit_blocks) / static_cast<double>(blocks);
  }
};

Result<CacheReplay> replay_cache(const CacheEvents& trace, const CacheReplayOptions& options);

}  // namespace quire
