#include "format/basis.h"

#include <cmath>

#include "base/random.h"

namespace quire {
namespace {

constexpr std::uint64_t kSeed = 0x7175697265;  // part of what the stored bytes mean

void hadamard(std::uint32_t dim, float* x) {
  const std::uint32_t size = dim & (~dim + 1);  // the largest power of two that divides it
  const float norm = 1 / std::sqrt(static_cast<float>(size));
  for (std::uint32_t distance = 1; distance < size; distance *= 2)
    for (std::uint32_t i = 0; i < dim; ++i)
      if (!(i & distance)) {
        const float a = x[i], b = x[i + distance];
        x[i] = a + b;
        x[i + distance] = a - b;
      }
  for (std::uint32_t i = 0; i < dim; ++i) x[i] *= norm;
}

}  // namespace

void flip_signs(std::uint64_t seed, std::uint32_t dim, float* x) {
  for (std::uint32_t d = 0; d < dim; ++d)
    if (mix64(seed + d / 64) >> d % 64 & 1) x[d] = -x[d];
}

void flip_basis_signs(std::uint32_t dim, float* x) { flip_signs(kSeed, dim, x); }

void to_basis(Basis basis, std::uint32_t dim, float* x) {
  if (basis == Basis::signed_hadamard) flip_basis_signs(dim, x);
  if (basis != Basis::plain) hadamard(dim, x);
}

void from_basis(Basis basis, std::uint32_t dim, float* x) {
  if (basis != Basis::plain) hadamard(dim, x);
  if (basis == Basis::signed_hadamard) flip_basis_signs(dim, x);
}

}  // namespace quire
