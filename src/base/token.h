// base/token.h - the number of a token in a vocabulary.
#pragma once

#include <cstdint>

namespace quire {

using TokenId = std::uint32_t;
inline constexpr TokenId kNoToken = 0xffffffffu;

// The most likely token, of several the one with the lowest number; NaN where the model's output
// is not finite.
struct BestToken {
  TokenId token;
  float logprob;
};

// Instead of a token: the best one that wanted row r of the step before has found (kBestOfRow | r).
inline constexpr TokenId kBestOfRow = 0x80000000u;

}  // namespace quire
