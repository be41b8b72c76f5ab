// kernels/cpu/floats.h - sixteen floats as one value: one AVX-512 register, or two of AVX2.
//
// Included only by *_avx2.cc and *_avx512.cc, whose kernels are written once in these terms.
// Element i of a value holds row element i mod 16 everywhere, so both instruction sets add the same
// numbers in the same order. Everything is in an anonymous namespace: each file keeps its own copy,
// compiled for its own instruction set.
#pragma once

// GCC 12 takes the undefined values inside its own intrinsics for ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstdint>

#include "format/format.h"
#include "kernels/terms.h"

namespace quire {
namespace {

#define QUIRE_INLINE [[gnu::always_inline]] inline
#define QUIRE_LAMBDA __attribute__((always_inline))

// Unrolls the next loop; sanitizers would take minutes to instrument what comes out.
#define QUIRE_PRAGMA(x) _Pragma(#x)
#ifdef QUIRE_SANITIZED
#define QUIRE_UNROLL(n)
#else
#define QUIRE_UNROLL(n) QUIRE_PRAGMA(GCC unroll n)
#endif

enum class F16 : std::uint16_t {};
enum class Bf16 : std::uint16_t {};

template <class T>
QUIRE_INLINE T least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
QUIRE_INLINE T most(T a, T b) {
  return a < b ? b : a;
}

#ifdef __AVX512F__

inline constexpr bool kWide = true;  // 32 registers of 16 floats; otherwise 16 of 8

using Floats = __m512;
using Mask = __mmask16;

QUIRE_INLINE Floats zero() { return _mm512_setzero_ps(); }
QUIRE_INLINE Floats all(float x) { return _mm512_set1_ps(x); }
QUIRE_INLINE Floats load(const float* p) { return _mm512_loadu_ps(p); }
QUIRE_INLINE Floats load(const F16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
QUIRE_INLINE Floats load(const Bf16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
QUIRE_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
QUIRE_INLINE void store(F16* p, Floats x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

QUIRE_INLINE Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
QUIRE_INLINE Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
QUIRE_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
QUIRE_INLINE Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
QUIRE_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
QUIRE_INLINE Floats fms(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
QUIRE_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
// b where a is NaN.
QUIRE_INLINE Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
QUIRE_INLINE Floats size_of(Floats x) { return _mm512_abs_ps(x); }
QUIRE_INLINE Floats with_sign(Floats size, Floats sign) {
  return _mm512_or_ps(size, _mm512_and_ps(sign, _mm512_set1_ps(-0.0f)));
}
// The power of two at or below |x|; infinity for infinity and NaN.
QUIRE_INLINE Floats exponent_of(Floats x) {
  return _mm512_and_ps(x, _mm512_set1_ps(__builtin_inff()));
}
// The low 9 bits of each element, moved to where a float keeps its exponent.
QUIRE_INLINE Floats as_exponent(Floats x) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23));
}

QUIRE_INLINE Mask less(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
QUIRE_INLINE Mask elements_between(std::uint32_t low,
                                   std::uint32_t high) {  // low <= element < high <= 16
  return static_cast<Mask>(((1u << high) - 1u) & ~((1u << low) - 1u));
}
QUIRE_INLINE Floats choose(Mask m, Floats yes, Floats no) {
  return _mm512_mask_blend_ps(m, no, yes);
}
// a * b, and 0 where x is below a bound.
QUIRE_INLINE Floats mul_unless_less(Floats x, Floats bound, Floats a, Floats b) {
  return _mm512_maskz_mul_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), a, b);
}
QUIRE_INLINE Floats load_first(const float* p, std::uint32_t n) {
  return _mm512_maskz_loadu_ps(elements_between(0, n), p);
}
QUIRE_INLINE void store_first(float* p, Floats x, std::uint32_t n) {
  _mm512_mask_storeu_ps(p, elements_between(0, n), x);
}
QUIRE_INLINE std::uint32_t equal_bits(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
QUIRE_INLINE std::uint32_t at_least_bits(Floats a, Floats b) {
  return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}

struct Halves {
  __m256 low, high;
};
QUIRE_INLINE Halves halves(Floats x) {
  return {_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)};
}

#else

inline constexpr bool kWide = false;

struct Floats {
  __m256 low, high;
};
struct Mask {
  __m256 low, high;
};
using Halves = Floats;
QUIRE_INLINE Halves halves(Floats x) { return x; }

QUIRE_INLINE Floats zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
QUIRE_INLINE Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
QUIRE_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
QUIRE_INLINE __m128i load_8(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
QUIRE_INLINE Floats load(const F16* p) {
  return {_mm256_cvtph_ps(load_8(p)), _mm256_cvtph_ps(load_8(p + 8))};
}
QUIRE_INLINE __m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
QUIRE_INLINE Floats load(const Bf16* p) {
  return {widen_bf16(load_8(p)), widen_bf16(load_8(p + 8))};
}
QUIRE_INLINE void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
QUIRE_INLINE void store(F16* p, Floats x) {
  const __m128i low = _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT);
  const __m128i high = _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), low);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), high);
}

QUIRE_INLINE Floats add(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
QUIRE_INLINE Floats sub(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
QUIRE_INLINE Floats mul(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
QUIRE_INLINE Floats div(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
QUIRE_INLINE Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
QUIRE_INLINE Floats fms(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
QUIRE_INLINE Floats fnma(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
QUIRE_INLINE Floats max(Floats a, Floats b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
QUIRE_INLINE Floats size_of(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}
QUIRE_INLINE Floats with_sign(Floats size, Floats sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(size.low, _mm256_and_ps(sign.low, bit)),
          _mm256_or_ps(size.high, _mm256_and_ps(sign.high, bit))};
}
QUIRE_INLINE Floats exponent_of(Floats x) {
  const __m256 bits = _mm256_set1_ps(__builtin_inff());
  return {_mm256_and_ps(x.low, bits), _mm256_and_ps(x.high, bits)};
}
QUIRE_INLINE __m256 as_exponent_8(__m256 x) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23));
}
QUIRE_INLINE Floats as_exponent(Floats x) { return {as_exponent_8(x.low), as_exponent_8(x.high)}; }

QUIRE_INLINE Mask less(Floats a, Floats b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
QUIRE_INLINE __m256 between_8(__m256i element, std::uint32_t low, std::uint32_t high) {
  const __m256i from = _mm256_set1_epi32(static_cast<int>(low) - 1);
  const __m256i to = _mm256_set1_epi32(static_cast<int>(high));
  return _mm256_castsi256_ps(
      _mm256_and_si256(_mm256_cmpgt_epi32(element, from), _mm256_cmpgt_epi32(to, element)));
}
QUIRE_INLINE Mask elements_between(std::uint32_t low, std::uint32_t high) {
  return {between_8(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), low, high),
          between_8(_mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15), low, high)};
}
QUIRE_INLINE Floats choose(Mask m, Floats yes, Floats no) {
  return {_mm256_blendv_ps(no.low, yes.low, m.low), _mm256_blendv_ps(no.high, yes.high, m.high)};
}
QUIRE_INLINE Floats mul_unless_less(Floats x, Floats bound, Floats a, Floats b) {
  const Mask m = less(x, bound);
  return {_mm256_andnot_ps(m.low, _mm256_mul_ps(a.low, b.low)),
          _mm256_andnot_ps(m.high, _mm256_mul_ps(a.high, b.high))};
}
QUIRE_INLINE Floats load_first(const float* p, std::uint32_t n) {
  const Mask m = elements_between(0, n);
  return {_mm256_maskload_ps(p, _mm256_castps_si256(m.low)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.high))};
}
QUIRE_INLINE void store_first(float* p, Floats x, std::uint32_t n) {
  const Mask m = elements_between(0, n);
  _mm256_maskstore_ps(p, _mm256_castps_si256(m.low), x.low);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.high), x.high);
}
QUIRE_INLINE std::uint32_t equal_bits(Floats a, Floats b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ));
  return static_cast<std::uint32_t>(low | high << 8);
}
QUIRE_INLINE std::uint32_t at_least_bits(Floats a, Floats b) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
  return static_cast<std::uint32_t>(low | high << 8);
}

#endif

QUIRE_INLINE float largest_of(Floats x) {
  const Halves h = halves(x);
  const __m256 a = _mm256_max_ps(h.low, h.high);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

// The tree of kernels/vector.h: 8 apart, 4, 2, 1.
QUIRE_INLINE float add_elements(Floats x) {
  const Halves h = halves(x);
  const __m256 a = _mm256_add_ps(h.low, h.high);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

// Reduces each of four vectors to one number by `pair`: its sum (in the tree order), or its
// largest.
template <class Pair>
QUIRE_INLINE __m128 fold_four(const Floats (&x)[4], Pair pair) {
  __m128 fours[4];
  for (int i = 0; i < 4; ++i) {
    const Halves h = halves(x[i]);
    const __m256 a = pair(h.low, h.high);
    fours[i] = pair(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  }
  const __m128 ab = pair(_mm_unpacklo_ps(fours[0], fours[1]), _mm_unpackhi_ps(fours[0], fours[1]));
  const __m128 cd = pair(_mm_unpacklo_ps(fours[2], fours[3]), _mm_unpackhi_ps(fours[2], fours[3]));
  return pair(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
}
struct AddPair {
  QUIRE_INLINE __m256 operator()(__m256 a, __m256 b) const { return _mm256_add_ps(a, b); }
  QUIRE_INLINE __m128 operator()(__m128 a, __m128 b) const { return _mm_add_ps(a, b); }
};
struct MaxPair {
  QUIRE_INLINE __m256 operator()(__m256 a, __m256 b) const { return _mm256_max_ps(a, b); }
  QUIRE_INLINE __m128 operator()(__m128 a, __m128 b) const { return _mm_max_ps(a, b); }
};
QUIRE_INLINE __m128 sums_of(const Floats (&x)[4]) { return fold_four(x, AddPair{}); }

// exp for x <= kExpMax, as ref::exp has it; 0 below least_x.
QUIRE_INLINE Floats exp_bounded(Floats x, float least_x = kExpMin) {
  const Floats biased = fma(x, all(kLog2E), all(kRoundBias));
  const Floats n = sub(biased, all(kRoundBias));
  Floats r = fnma(n, all(kLn2High), x);
  r = fnma(n, all(kLn2Low), r);
  Floats p = fma(all(kExp6), r, all(kExp5));
  p = fma(p, r, all(kExp4));
  p = fma(p, r, all(kExp3));
  p = fma(p, r, all(kExp2));
  p = fma(p, r, all(1.0f));
  p = fma(p, r, all(1.0f));
  return mul_unless_less(x, all(least_x), p, as_exponent(biased));
}

// For x <= 0, as ref::exp_coarse has it.
QUIRE_INLINE Floats exp_coarse(Floats x) {
  const Floats t = mul(x, all(kLog2E));
  const Floats biased = add(t, all(kRoundBias));
  const Floats f = sub(t, sub(biased, all(kRoundBias)));
  Floats p = fma(all(kCoarse3), f, all(kCoarse2));
  p = fma(p, f, all(kCoarse1));
  p = fma(p, f, all(1.0f));
  return mul_unless_less(x, all(kExpMin), p, as_exponent(biased));
}

QUIRE_INLINE Floats exp(Floats x) {
  return choose(less(all(kExpMax), x), all(__builtin_inff()), exp_bounded(x));
}

QUIRE_INLINE Floats tanh(Floats x) {
  const Floats size = size_of(x), square = mul(x, x);
  Floats p = fma(all(kTanh11), square, all(kTanh9));
  p = fma(p, square, all(kTanh7));
  p = fma(p, square, all(kTanh5));
  p = fma(p, square, all(kTanh3));
  const Floats small = fma(mul(p, square), x, x);
  const Floats e = exp_bounded(mul(all(-2.0f), size));
  const Floats large = with_sign(div(sub(all(1.0f), e), add(all(1.0f), e)), x);
  return choose(less(size, all(kTanhSmall)), small, large);
}

QUIRE_INLINE Floats times_sigmoid(Floats x, Floats y) {
  return div(x, add(all(1.0f), exp(sub(zero(), y))));
}

}  // namespace
}  // namespace quire
