// kernels/gate_terms.h - the constants of gates that few models have, shared by the scalar reference and
// every vector version (those of exp, tanh and the common gates: kernels/terms.h).
#pragma once

namespace quire {

// erf by t = 1 / (1 + kErfP * |z|): 1 - erf(|z|) = t * (kErf1 + t * (kErf2 + ...)) * exp(-z^2), 1.5e-7
// absolute (Abramowitz and Stegun 7.1.26).
inline constexpr float kErfP = 0.3275911f, kErf1 = 0.254829592f, kErf2 = -0.284496736f,
                       kErf3 = 1.421413741f, kErf4 = -1.453152027f, kErf5 = 1.061405429f;
inline constexpr float kSqrtHalf = 0.70710678118654752f;

// gpt-oss: gates are times sigmoid(kClampedSlope * gate).
inline constexpr float kClampedSlope = 1.702f;

}  // namespace quire
