// base/token.h - the number of a token in a vocabulary.
#pragma once

#include <cstdint>

namespace quire {

using TokenId = std::uint32_t;
inline constexpr TokenId kNoToken = 0xffffffffu;

}  // namespace quire
