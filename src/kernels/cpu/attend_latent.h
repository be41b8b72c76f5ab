// kernels/cpu/attend_latent.h - a unit of latent rows as keys. Latent rows lie [slot][dim], as values do,
// and sums read them so. Scores want [dim][slot]: the 64 rows of a unit are turned once, for all query
// heads of a task, and then are keys like any others.
#pragma once

#include "kernels/cpu/attend_tile.h"

namespace quire {
namespace {

// Eight rows of eight 32-bit words, in registers.
QUIRE_INLINE void turn_words(__m256i (&x)[8]) {
  __m256i a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_epi32(x[i], x[i + 1]);
    a[i + 1] = _mm256_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 8; i += 4)
    for (int k = 0; k < 2; ++k) {
      b[i + 2 * k] = _mm256_unpacklo_epi64(a[i + k], a[i + k + 2]);
      b[i + 2 * k + 1] = _mm256_unpackhi_epi64(a[i + k], a[i + k + 2]);
    }
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
    x[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
  }
}

QUIRE_INLINE __m256i load_256(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}
QUIRE_INLINE void store_256(void* to, __m256i x) {
  _mm256_storeu_si256(static_cast<__m256i*>(to), x);
}

// Sixteen slots by sixteen dimensions: from[slot * dim + d] goes to to[d * 64 + slot].
inline void turn_16(const float* from, std::size_t dim, float* to) {
  for (std::size_t slot = 0; slot < 16; slot += 8)
    for (std::size_t d = 0; d < 16; d += 8) {
      __m256i x[8];
      for (std::size_t i = 0; i < 8; ++i) x[i] = load_256(from + (slot + i) * dim + d);
      turn_words(x);
      for (std::size_t i = 0; i < 8; ++i) store_256(to + (d + i) * kAttendUnit + slot, x[i]);
    }
}

// Two slots make words of two elements, one dimension each; then words are turned.
template <class E>
inline void turn_16(const E* from, std::size_t dim, E* to) {
  static_assert(sizeof(E) == 2);
  __m256i first[8], second[8];  // dimensions 0-3 and 8-11, 4-7 and 12-15, of slots 2 i and 2 i + 1
  for (std::size_t i = 0; i < 8; ++i) {
    const __m256i a = load_256(from + 2 * i * dim), b = load_256(from + (2 * i + 1) * dim);
    first[i] = _mm256_unpacklo_epi16(a, b);
    second[i] = _mm256_unpackhi_epi16(a, b);
  }
  turn_words(first);
  turn_words(second);
  for (std::size_t i = 0; i < 4; ++i) {
    store_256(to + i * kAttendUnit, first[i]);
    store_256(to + (8 + i) * kAttendUnit, first[4 + i]);
    store_256(to + (4 + i) * kAttendUnit, second[i]);
    store_256(to + (12 + i) * kAttendUnit, second[4 + i]);
  }
}

// The latent rows of a unit as keys: pages of 64 slots.
template <class E>
Unit<E> turn_unit(const Unit<E>& unit, std::size_t dim, float* scratch) {
  E* const to = reinterpret_cast<E*>(scratch);
  Unit<E> made = unit;
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    for (std::size_t d = 0; d < dim; d += 16)
      turn_16(unit.values[g] + d, dim, to + d * kAttendUnit + 16 * g);
    made.keys[g] = to + 16 * g;
  }
  return made;
}

}  // namespace
}  // namespace quire
