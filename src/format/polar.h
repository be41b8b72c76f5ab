// format/polar.h - a block of 16 numbers as one radius and 15 angles. Used by polar.cc and its
// test.
//
// Level 1 takes the 8 neighbouring pairs, levels 2 to 4 the radii of the level before: each pair
// becomes its radius and the direction of a codebook that lies nearest. Only products and square
// roots: no arctangent whose last bit depends on a library.
#pragma once

#include <cmath>
#include <cstdint>

namespace quire {

inline constexpr std::uint32_t kPolarBlock = 16, kPolarLevels = 4;

struct PolarDirections {  // of one level
  const float *cosines, *sines;
  std::uint32_t count;
};

// codes: level 1's 8, level 2's 4, level 3's 2, level 4's 1. Returns the radius. Of directions
// equally near, the first.
inline float polar_encode(const PolarDirections* levels, const float* x, std::uint16_t* codes) {
  float radii[kPolarBlock];
  for (std::uint32_t i = 0; i < kPolarBlock; ++i) radii[i] = x[i];
  for (std::uint32_t l = 0, pairs = kPolarBlock / 2; l < kPolarLevels; ++l, pairs /= 2)
    for (std::uint32_t p = 0; p < pairs; ++p) {
      const float a = radii[2 * p], b = radii[2 * p + 1];
      std::uint32_t best = 0;
      float most = -INFINITY;
      for (std::uint32_t i = 0; i < levels[l].count; ++i) {
        const float along = a * levels[l].cosines[i] + b * levels[l].sines[i];
        if (along > most) most = along, best = i;
      }
      *codes++ = static_cast<std::uint16_t>(best);
      radii[p] = std::sqrt(a * a + b * b);
    }
  return radii[0];
}

inline void polar_decode(const PolarDirections* levels, const std::uint16_t* codes, float radius,
                         float* x) {
  const std::uint16_t* at = codes + kPolarBlock - 1;
  x[0] = radius;
  for (std::uint32_t l = kPolarLevels, pairs = 1; l-- > 0; pairs *= 2) {
    at -= pairs;
    for (std::uint32_t p = pairs; p-- > 0;) {
      const float r = x[p];
      x[2 * p] = r * levels[l].cosines[at[p]];
      x[2 * p + 1] = r * levels[l].sines[at[p]];
    }
  }
}

}  // namespace quire
