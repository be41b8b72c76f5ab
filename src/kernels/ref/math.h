// kernels/ref/math.h - exp, tanh and ordered sums in plain C++: these lines define the bits
// (constants: kernels/terms.h).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/terms.h"

namespace quire::ref {

inline float exp(float x) {
  if (x < kExpMin) return 0.0f;
  if (x > kExpMax) return std::numeric_limits<float>::infinity();
  const float biased = std::fma(x, kLog2E, kRoundBias);
  const float n = biased - kRoundBias;
  float r = std::fma(n, -kLn2High, x);
  r = std::fma(n, -kLn2Low, r);
  float p = std::fma(kExp6, r, kExp5);
  p = std::fma(p, r, kExp4);
  p = std::fma(p, r, kExp3);
  p = std::fma(p, r, kExp2);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  return p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(biased) << 23);
}

inline float exp_coarse(float x) {  // x <= 0
  if (x < kExpMin) return 0.0f;
  const float t = x * kLog2E;
  const float biased = t + kRoundBias;
  const float f = t - (biased - kRoundBias);
  float p = std::fma(kCoarse3, f, kCoarse2);
  p = std::fma(p, f, kCoarse1);
  p = std::fma(p, f, 1.0f);
  return p * std::bit_cast<float>(std::bit_cast<std::uint32_t>(biased) << 23);
}

inline float tanh(float x) {
  const float size = std::fabs(x);
  const float square = x * x;
  float p = std::fma(kTanh11, square, kTanh9);
  p = std::fma(p, square, kTanh7);
  p = std::fma(p, square, kTanh5);
  p = std::fma(p, square, kTanh3);
  if (size < kTanhSmall) return std::fma(p * square, x, x);
  const float e = ref::exp(-2.0f * size);
  return std::copysign((1.0f - e) / (1.0f + e), x);
}

// x * sigmoid(y): silu is y = x, gelu is y = 2u.
inline float times_sigmoid(float x, float y) { return x / (1.0f + ref::exp(-y)); }

// Adds 16 partial sums as a tree: 8 apart, 4, 2, 1. Overwrites `sums`.
inline float add_tree(float (&sums)[16]) {
  for (std::uint32_t apart = 8; apart > 0; apart /= 2)
    for (std::uint32_t i = 0; i < apart; ++i) sums[i] += sums[i + apart];
  return sums[0];
}

}  // namespace quire::ref
