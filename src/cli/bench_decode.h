// cli/bench_decode.h - how fast tokens are made at a depth, with the cache stored in one way or in
// several, side by side. For `quire bench`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/runtime.h"

namespace quire::cli {

struct DecodeQuestion {
  std::vector<StoragePolicy> ways;  // the first is what the others are compared with
  std::uint32_t depth, count, batch, repeat;
};

struct DecodeScore {
  std::string format;
  std::vector<double> rates;   // tokens per second, of each repetition
  std::vector<double> ratios;  // to the first way, measured right before; none for itself
  std::uint64_t kv_bytes;      // that a step reads
};

// One score per way. With several, only the first reads its context, the others' is encoded from
// it: what decoding costs does not depend on the numbers.
Result<std::vector<DecodeScore>> bench_decode(Runtime& runtime, const DecodeQuestion& question);

// Token numbers that no other salt shares a prefix with, so that the prefix cache cannot help.
std::vector<TokenId> filler(const Runtime& runtime, std::uint32_t count, std::uint64_t salt);
Status read_all(Runtime& runtime, Sequence& s, std::span<const TokenId> prompt);

}  // namespace quire::cli
