// format/basis.h - the rotations under which some codecs store their rows.
//
// A rotation leaves scores as they are when the query is rotated too, and spreads a large channel
// over all of them. H is the orthonormal Walsh-Hadamard matrix of the largest power of two that
// divides the dimension, repeated along it; D flips signs, fixed by a hash of the dimension.
//
//   to_basis(Basis::hadamard, 64, key);    // encode does it to keys and values
//   to_basis(Basis::hadamard, 64, query);  // once per query: dot products are unchanged
//   from_basis(Basis::hadamard, 64, out);  // once per output of attention
#pragma once

#include <cstdint>

namespace quire {

enum class Basis : std::uint8_t {
  plain,
  hadamard,         // H x
  signed_hadamard,  // H D x
};

// In place. Sums are f32: butterflies over distance 1, 2, 4, ..., then one product with 1 /
// sqrt(N).
void to_basis(Basis basis, std::uint32_t dim, float* x);
void from_basis(Basis basis, std::uint32_t dim, float* x);

void flip_basis_signs(std::uint32_t dim, float* x);  // D
// D with another seed: x[d] changes sign where bit d of the seed's stream is set.
void flip_signs(std::uint64_t seed, std::uint32_t dim, float* x);

}  // namespace quire
