// kernels/cpu/words.h - sixteen pairs of 16-bit integers as one value, and sixteen 32-bit sums:
//   c += a.even * b.even + a.odd * b.odd
// which VPDPWSSD does in one instruction (twice the rate of f32) and everything else in two. A pair
// is a 32-bit word, the even element in its low half. Integers are exact, so any order is alike.
#pragma once

#include "kernels/cpu/lanes.h"

namespace quire {
namespace {

inline constexpr float kWordBias = 12582912.0f;  // 1.5 * 2^23

#ifdef __AVX512F__

using Words = __m512i;
using Sums = __m512i;

QUIRE_INLINE Sums no_sums() { return _mm512_setzero_si512(); }
QUIRE_INLINE Words load_words(const std::uint32_t* p) { return _mm512_loadu_si512(p); }
QUIRE_INLINE void store_words(std::uint32_t* p, Words x) { _mm512_storeu_si512(p, x); }
QUIRE_INLINE Words all_words(std::uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
QUIRE_INLINE Sums dot_add(Words a, Words b, Sums c) {
#ifdef __AVX512VNNI__
  // As an instruction: of the intrinsic GCC 12 keeps half of the sums on the stack.
  asm("vpdpwssd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
  return c;
#else
  return _mm512_add_epi32(c, _mm512_madd_epi16(a, b));
#endif
}
QUIRE_INLINE Lanes as_floats(Sums x) { return _mm512_cvtepi32_ps(x); }
// Of numbers to which kWordBias was added, which rounds them (ties to even) and leaves the integer
// in the low bits.
QUIRE_INLINE Words make_words(Lanes even, Lanes odd) {
  const __m512i order =
      _mm512_set_epi16(62, 30, 60, 28, 58, 26, 56, 24, 54, 22, 52, 20, 50, 18, 48, 16, 46, 14, 44,
                       12, 42, 10, 40, 8, 38, 6, 36, 4, 34, 2, 32, 0);
  return _mm512_permutex2var_epi16(_mm512_castps_si512(even), order, _mm512_castps_si512(odd));
}

#else

struct Words {
  __m256i low, high;
};
using Sums = Words;

QUIRE_INLINE Sums no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
QUIRE_INLINE Words load_words(const std::uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
QUIRE_INLINE void store_words(std::uint32_t* p, Words x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.high);
}
QUIRE_INLINE Words all_words(std::uint32_t x) {
  const __m256i y = _mm256_set1_epi32(static_cast<int>(x));
  return {y, y};
}
QUIRE_INLINE Sums dot_add(Words a, Words b, Sums c) {
  return {_mm256_add_epi32(c.low, _mm256_madd_epi16(a.low, b.low)),
          _mm256_add_epi32(c.high, _mm256_madd_epi16(a.high, b.high))};
}
QUIRE_INLINE Lanes as_floats(Sums x) {
  return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
}
QUIRE_INLINE __m256i words_8(__m256 even, __m256 odd) {
  const __m256i high = _mm256_slli_epi32(_mm256_castps_si256(odd), 16);
  return _mm256_blend_epi16(_mm256_castps_si256(even), high, 0xaa);
}
QUIRE_INLINE Words make_words(Lanes even, Lanes odd) {
  return {words_8(even.low, odd.low), words_8(even.high, odd.high)};
}

#endif

}  // namespace
}  // namespace quire
