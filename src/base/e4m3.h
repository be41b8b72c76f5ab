// base/e4m3.h - the 8-bit float e4m3 by arithmetic on bits: bias 7, largest 448, no infinities, NaN is
// s.1111.111.
#pragma once

#include <bit>
#include <cstdint>

namespace quire {

inline constexpr float kE4m3Min = 0x1p-9f;

inline float e4m3_to_f32(std::uint8_t b) {
  const std::uint32_t sign = (b & 0x80u) << 24, magnitude = b & 0x7fu;
  if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  const float value = magnitude < 8 ? static_cast<float>(magnitude) * kE4m3Min
                                    : std::bit_cast<float>((magnitude << 20) + (120u << 23));
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
}

}  // namespace quire
