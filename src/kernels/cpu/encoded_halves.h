// kernels/cpu/encoded_halves.h - f16 numbers, each in the low half of an int32, and the other
// instructions that only sealing needs.
#pragma once

#include "kernels/cpu/bytes.h"

namespace quire {
namespace {

#ifdef __AVX512F__
// b where a is NaN, or where both are equal.
QUIRE_INLINE Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
QUIRE_INLINE Floats floored(Floats x) { return _mm512_roundscale_ps(x, 1); }
QUIRE_INLINE Floats root(Floats x) { return _mm512_sqrt_ps(x); }
QUIRE_INLINE Floats without_nan(Floats x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, x, _CMP_ORD_Q), x);
}
QUIRE_INLINE Ints to_halves(Floats x) {
  return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
QUIRE_INLINE __m256i halves_16(Ints h) { return _mm512_cvtepi32_epi16(h); }
QUIRE_INLINE Floats from_halves(Ints h) { return _mm512_cvtph_ps(halves_16(h)); }
#else
QUIRE_INLINE Floats min(Floats a, Floats b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
QUIRE_INLINE Floats floored(Floats x) { return {_mm256_floor_ps(x.low), _mm256_floor_ps(x.high)}; }
QUIRE_INLINE Floats root(Floats x) { return {_mm256_sqrt_ps(x.low), _mm256_sqrt_ps(x.high)}; }
QUIRE_INLINE Floats without_nan(Floats x) {
  return {_mm256_and_ps(x.low, _mm256_cmp_ps(x.low, x.low, _CMP_ORD_Q)),
          _mm256_and_ps(x.high, _mm256_cmp_ps(x.high, x.high, _CMP_ORD_Q))};
}
QUIRE_INLINE Ints to_halves(Floats x) {
  return {_mm256_cvtepu16_epi32(_mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT)),
          _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT))};
}
QUIRE_INLINE __m256i halves_16(Ints h) {
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(h.low, h.high), 0xd8);
}
QUIRE_INLINE Floats from_halves(Ints h) {
  const __m256i packed = halves_16(h);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(packed)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1))};
}
#endif

QUIRE_INLINE void store_halves(std::byte* p, Ints h) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), halves_16(h));
}
QUIRE_INLINE Ints choose(Mask m, Ints yes, Ints no) {
  return as_ints(choose(m, as_floats(yes), as_floats(no)));
}
// NaN is 0, and nothing is beyond f16.
QUIRE_INLINE Floats cleaned(Floats x) {
  return min(max(without_nan(x), all(-65504.0f)), all(65504.0f));
}
// The smallest f16 not below x >= 0, or 65504.
QUIRE_INLINE Ints halves_up(Floats x) {
  const Ints h = to_halves(x);
  const Ints up = add(h, choose(less(from_halves(h), x), all_ints(1), zero_ints()));
  return choose(less(all(65504.0f), x), all_ints(0x7bff), up);
}

}  // namespace
}  // namespace quire
