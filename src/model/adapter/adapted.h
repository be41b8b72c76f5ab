// model/adapter/adapted.h - the linear layers that adapters change, in the order of computation.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

enum class Adapted : std::uint8_t { q, k, v, out, gate, up, down };
inline constexpr std::size_t kAdaptedCount = 7;

}  // namespace quire
