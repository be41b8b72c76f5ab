// replay/mooncake.h - traces as Mooncake publishes them: one JSON object a line, with the arrival
// in milliseconds, the lengths in tokens, and an id for each block of 512 tokens of the prompt. Equal
// ids are equal text after equal text.
//
//   {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, ...]}
//
//   TRY(const std::vector<TraceRequest> trace, read_mooncake(path));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "replay/block_replay.h"
#include "replay/lines.h"

namespace quire {

inline constexpr std::uint32_t kMooncakeBlockTokens = 512;

struct TraceRequest {
  Nanoseconds arrival = 0;  // after the first
  std::uint32_t input_tokens = 0, output_tokens = 0;
  BlockChain chain = {};
};

Result<TraceRequest> parse_mooncake(std::string_view line);
Result<std::vector<TraceRequest>> read_mooncake(const std::string& path);
Result<std::vector<TraceRequest>> read_mooncake(LineReader lines);

}  // namespace quire
