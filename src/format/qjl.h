// format/qjl.h - the projection S of QJL: 2 * dim random directions. Used by qjl.cc and its test.
//
// S is two stacked blocks, each sqrt(dim) times an orthogonal matrix: three rounds of random signs
// and Hadamard, which are near enough to Gaussian directions and need no table. One draw of S (one
// seed) is what the stored bits mean.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr std::uint64_t kQjlSeed = 0x716a6c;

// out[2 * dim] = S x
void qjl_project(std::uint64_t seed, std::uint32_t dim, const float* x, float* out);
// x[dim] = factor * transpose(S) signs, the key whose product with q is the estimate of QJL
void qjl_estimate(std::uint64_t seed, std::uint32_t dim, float norm, const float* signs, float* x);

}  // namespace quire
