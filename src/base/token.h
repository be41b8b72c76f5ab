// base/token.h - the number of a token in a vocabulary.
#pragma once

#include <cstdint>

namespace quire {

using TokenId = std::uint32_t;
inline constexpr TokenId kNoToken = 0xffffffffu;

// The most likely token; of equally likely ones the lowest number. `logprob` is NaN if the model's
// output is not finite.
struct BestToken {
  TokenId token;
  float logprob;
};

// Stands for a token that is not known yet: the best token of wanted row r of the previous step
// (kBestOfRow | r).
inline constexpr TokenId kBestOfRow = 0x80000000u;

}  // namespace quire
