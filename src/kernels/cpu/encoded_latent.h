// kernels/cpu/encoded_latent.h - the latent part of a page as keys: codes of values, in which 4 slots of
// a dimension lie side by side, become codes of keys, in which 4 dimensions of a slot do.
#pragma once

#include "kernels/cpu/encoded_tile.h"

namespace quire {
namespace {

// Bytes of 4 dimensions by 4 slots change sides.
QUIRE_INLINE __m128i turned(__m128i x) {
  return _mm_shuffle_epi8(x, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
}
QUIRE_INLINE void store_nibbles(std::byte* to, __m128i low, __m128i high) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_or_si128(turned(low), _mm_slli_epi16(turned(high), 4)));
}

inline void turn_bytes(std::size_t tokens, std::size_t dim, const std::byte* from, std::byte* to) {
  for (std::size_t slot = 0; slot < tokens; slot += 4)
    for (std::size_t d = 0; d < dim; d += 4, from += 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + d * tokens + 4 * slot),
                       turned(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

// A vector of 64 bytes has dimensions [0, 16) in its low nibbles and [16, 32) in its high ones; one of
// keys has 4 dimensions in its low nibbles and the next 4 in its high ones.
inline void turn_nibbles(std::size_t tokens, std::size_t dim, const std::byte* from,
                         std::byte* to) {
  const __m128i mask = _mm_set1_epi8(0x0f);
  const std::size_t row = 4 * tokens;  // of 8 dimensions
  for (std::size_t slot = 0; slot < tokens; slot += 4)
    for (std::size_t d = 0; d < dim; d += 32, from += 64) {
      __m128i low[4], high[4];
      for (int i = 0; i < 4; ++i) {
        const __m128i both = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16 * i));
        low[i] = _mm_and_si128(both, mask);
        high[i] = _mm_and_si128(_mm_srli_epi16(both, 4), mask);
      }
      std::byte* const at = to + d / 8 * row + 4 * slot;
      store_nibbles(at, low[0], low[1]);
      store_nibbles(at + row, low[2], low[3]);
      store_nibbles(at + 2 * row, high[0], high[1]);
      store_nibbles(at + 3 * row, high[2], high[3]);
    }
}

inline void turn(const EncodedPart& p, const std::byte* page, std::byte* keys) {
  if (p.rows.dim % 32 != 0) return kEncodedScalar.turn(p, page, keys);
  const std::size_t codes = std::size_t{p.rows.tokens} * p.rows.dim * p.bits / 8;
  if (p.bits == 8)
    turn_bytes(p.rows.tokens, p.rows.dim, page, keys);
  else
    turn_nibbles(p.rows.tokens, p.rows.dim, page, keys);
  __builtin_memcpy(keys + codes, page + codes, p.page_bytes - codes);
}

}  // namespace
}  // namespace quire
