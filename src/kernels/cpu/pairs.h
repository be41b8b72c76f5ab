// kernels/cpu/pairs.h - sixteen pairs of bf16 as one value, and a step of the narrow arithmetic:
//   c = fma(a.odd, b.odd, c), then c = fma(a.even, b.even, c)
// which VDPBF16PS does in one instruction (twice the rate of f32) and everything else in two. A
// pair is a 32-bit word, the even element in its low half. Subnormal results, which VDPBF16PS would
// flush, cannot matter here: kernels/attend.h says why.
#pragma once

#include "kernels/cpu/floats.h"

namespace quire {
namespace {

#ifdef __AVX512BF16__

using Pairs = __m512bh;

QUIRE_INLINE Pairs load_pairs(const std::uint32_t* p) {
  return reinterpret_cast<Pairs>(_mm512_loadu_si512(p));
}
QUIRE_INLINE Pairs all_pairs(std::uint32_t x) {
  return reinterpret_cast<Pairs>(_mm512_set1_epi32(static_cast<int>(x)));
}
QUIRE_INLINE Floats dot_add(Pairs a, Pairs b, Floats c) { return _mm512_dpbf16_ps(c, a, b); }
QUIRE_INLINE Pairs only(Pairs x, std::uint32_t bits) {
  return reinterpret_cast<Pairs>(
      _mm512_and_si512(reinterpret_cast<__m512i>(x), _mm512_set1_epi32(static_cast<int>(bits))));
}

#else

struct Pairs {
  Floats odd, even;
};

#ifdef __AVX512F__
QUIRE_INLINE Pairs unpack(__m512i bits) {
  return {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(-0x10000))),
          _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
}
QUIRE_INLINE Pairs load_pairs(const std::uint32_t* p) { return unpack(_mm512_loadu_si512(p)); }
#else
QUIRE_INLINE __m256 odd_8(__m256i bits) {
  return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(-0x10000)));
}
QUIRE_INLINE __m256 even_8(__m256i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
QUIRE_INLINE Pairs load_pairs(const std::uint32_t* p) {
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8));
  return {{odd_8(low), odd_8(high)}, {even_8(low), even_8(high)}};
}
#endif
QUIRE_INLINE Pairs all_pairs(std::uint32_t x) {
  const std::uint32_t odd = x & 0xffff0000u, even = x << 16;
  float f[2];
  __builtin_memcpy(&f[0], &odd, 4);
  __builtin_memcpy(&f[1], &even, 4);
  return {all(f[0]), all(f[1])};
}
QUIRE_INLINE Floats dot_add(Pairs a, Pairs b, Floats c) {
  return fma(a.even, b.even, fma(a.odd, b.odd, c));
}
QUIRE_INLINE Pairs only(Pairs x, std::uint32_t bits) {
  if (bits >> 16 == 0) x.odd = zero();
  if ((bits & 0xffffu) == 0) x.even = zero();
  return x;
}

#endif

inline constexpr std::uint32_t kEvenHalf = 0xffffu, kOddHalf = 0xffff0000u;

// Sixteen floats, rounded to bf16, ties to even.
#ifdef __AVX512BF16__
QUIRE_INLINE void store_narrow(std::uint16_t* to, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}
QUIRE_INLINE Pairs make_pairs(Floats even, Floats odd) {
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  return reinterpret_cast<Pairs>(_mm512_permutexvar_epi16(order, both));
}
QUIRE_INLINE void store_pairs(std::uint32_t* to, Floats even, Floats odd) {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(make_pairs(even, odd)));
}
#elif defined(__AVX512F__)
QUIRE_INLINE __m512i rounded_bits(Floats x) {  // bf16 in the upper half, rubbish in the lower
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i tie = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(tie, _mm512_set1_epi32(0x7fff)));
}
QUIRE_INLINE void store_narrow(std::uint16_t* to, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(x), 16)));
}
QUIRE_INLINE Floats narrowed(Floats x) {
  return _mm512_castsi512_ps(_mm512_and_si512(rounded_bits(x), _mm512_set1_epi32(-0x10000)));
}
QUIRE_INLINE Pairs make_pairs(Floats even, Floats odd) { return {narrowed(odd), narrowed(even)}; }
QUIRE_INLINE void store_pairs(std::uint32_t* to, Floats even, Floats odd) {
  const __m512i high = _mm512_castps_si512(narrowed(odd));
  _mm512_storeu_si512(to, _mm512_or_si512(high, _mm512_srli_epi32(rounded_bits(even), 16)));
}
#else
QUIRE_INLINE __m256i rounded_bits(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i tie = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(tie, _mm256_set1_epi32(0x7fff)));
}
QUIRE_INLINE void store_narrow(std::uint16_t* to, Floats x) {
  const __m256i packed = _mm256_packus_epi32(_mm256_srli_epi32(rounded_bits(x.low), 16),
                                             _mm256_srli_epi32(rounded_bits(x.high), 16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(packed, 0xd8));
}
QUIRE_INLINE Floats narrowed(Floats x) {
  return {odd_8(rounded_bits(x.low)), odd_8(rounded_bits(x.high))};
}
QUIRE_INLINE Pairs make_pairs(Floats even, Floats odd) { return {narrowed(odd), narrowed(even)}; }
QUIRE_INLINE __m256i pairs_8(__m256 even, __m256 odd) {
  const __m256i high = _mm256_and_si256(rounded_bits(odd), _mm256_set1_epi32(-0x10000));
  return _mm256_or_si256(high, _mm256_srli_epi32(rounded_bits(even), 16));
}
QUIRE_INLINE void store_pairs(std::uint32_t* to, Floats even, Floats odd) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), pairs_8(even.low, odd.low));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8), pairs_8(even.high, odd.high));
}
#endif

// Sixteen elements of two rows of a page, as pairs.
QUIRE_INLINE Pairs pair_rows(const F16* even, const F16* odd) {
  return make_pairs(load(even), load(odd));
}
QUIRE_INLINE void store_pair_rows(std::uint32_t* to, const F16* even, const F16* odd) {
  store_pairs(to, load(even), load(odd));
}
QUIRE_INLINE void store_pair_rows(std::uint32_t* to, const Bf16* even, const Bf16* odd) {
  for (int i = 0; i < 16; i += 8) {
    const __m256i low =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(even + i)));
    const __m256i high = _mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(odd + i))), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm256_or_si256(low, high));
  }
}
QUIRE_INLINE Pairs pair_rows(const Bf16* even, const Bf16* odd) {
#ifdef __AVX512BF16__
  const __m512i low =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even)));
  const __m512i high =
      _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)));
  return reinterpret_cast<Pairs>(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
#else
  return {load(odd), load(even)};
#endif
}

}  // namespace
}  // namespace quire
