// format/fp8.h - the two 8-bit floats, by arithmetic on bits.
//
// e4m3: see base/e4m3.h. e5m2: the top byte of an f16, largest 57,344. Rounding is to nearest, ties to even; what is too large becomes the largest.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/e4m3.h"
#include "base/half.h"

namespace quire {

inline constexpr float kE4m3Max = 448, kE5m2Max = 57344;

namespace fp8 {

// `mantissa` bits after the point, exponents from `least` on, nothing above `max`. x is not NaN.
inline std::uint8_t narrow(float x, int mantissa, int least, float max) {
  const std::uint8_t sign = std::signbit(x) ? 0x80 : 0;
  const float a = std::fmin(std::fabs(x), max);
  const int exponent =
      std::max(static_cast<int>(std::bit_cast<std::uint32_t>(a) >> 23) - 127, least);
  // In units of the last place: 2^mantissa and up are normal, and rounding up carries into the
  // exponent by itself.
  const float units =
      a * std::bit_cast<float>(static_cast<std::uint32_t>(mantissa - exponent + 127) << 23);
  const auto whole = static_cast<std::uint32_t>(std::nearbyint(units));
  return static_cast<std::uint8_t>(
      sign | ((static_cast<std::uint32_t>(exponent - least) << mantissa) + whole));
}

}  // namespace fp8

inline std::uint8_t f32_to_e4m3(float x) {
  return std::isnan(x) ? 0x7f : fp8::narrow(x, 3, -6, kE4m3Max);
}

inline std::uint8_t f32_to_e5m2(float x) {
  return std::isnan(x) ? 0x7f : fp8::narrow(x, 2, -14, kE5m2Max);
}

inline float e5m2_to_f32(std::uint8_t b) { return f16_to_f32(static_cast<std::uint16_t>(b << 8)); }

// A power of two as one byte, the exponent field of an f32: 127 is 1.
inline float power_of_two(std::uint8_t exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}

// The smallest power of two s with largest / s <= top. `top` is at least 1, largest below 2^100.
inline std::uint8_t scale_exponent(float largest, float top) {
  if (!(largest > 0)) return 127;
  const float ratio = largest / top;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(ratio);
  return static_cast<std::uint8_t>(std::max((bits + 0x7fffffu) >> 23, 1u));
}

}  // namespace quire
