// kernels/cpu/linear_512.h - the 512-bit instructions that linear_tile.h is written in, and the
// activation codes with them. linear_avx512.cc and linear_vnni.cc differ in how four bytes are
// multiplied and added.
#pragma once

// GCC 12 takes the deliberately undefined registers inside its own intrinsics for mistakes.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include "kernels/cpu/linear_multiply.h"

namespace quire {
namespace {

struct Lanes512 {
  using I = __m512i;
  using F = __m512;
  static constexpr int kLanes = 16;

  static I zero_int() { return _mm512_setzero_si512(); }
  static F zero() { return _mm512_setzero_ps(); }
  static I load_int(const std::byte* p) { return _mm512_loadu_si512(p); }
  // vpbroadcastd for floats too: it needs no vector pipe where vbroadcastss does (Zen 4, measured).
  static I broadcast(const std::byte* p) { return _mm512_set1_epi32(load_as<std::int32_t>(p)); }
  static F broadcast_float(const std::byte* p) { return _mm512_castsi512_ps(broadcast(p)); }
  static F load_float(const std::byte* p) { return _mm512_loadu_ps(p); }
  static F load_half(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load_brain(const std::byte* p) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }
  static void store(float* p, F v, std::uint32_t count) {
    if (count >= 16)
      _mm512_storeu_ps(p, v);
    else
      _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), v);
  }
  static I low_nibbles(I v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static I high_nibbles(I v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
  static I look_up(I v) {
    const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Codes));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v);
  }
  template <int kBits>
  static I shift_left(I v) {
    return _mm512_slli_epi32(v, kBits);
  }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
};

inline __m512i code_16(__m512 x, float inverse) {
  return _mm512_cvtps_epi32(_mm512_mul_ps(x, _mm512_set1_ps(inverse)));
}

inline void quantize_block(const float* x, bool wide, std::uint32_t slot, std::byte* cell) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
  const __m512i top_bits = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                                            _mm512_and_si512(_mm512_castps_si512(x1), magnitude));
  const std::uint32_t bits = _mm512_reduce_max_epu32(top_bits);
  float amax;
  std::memcpy(&amax, &bits, 4);
  const float top = wide ? kInt16Max : kInt8Max;
  const bool finite = bits < 0x7f800000u, coded = finite && amax >= kActivationMin;
  const float scale = !finite ? __builtin_nanf("") : coded ? amax / top : 0.0f;
  __m512i q0 = _mm512_setzero_si512(), q1 = q0;
  if (coded) {
    q0 = code_16(x0, top / amax);
    q1 = code_16(x1, top / amax);
  }
  __m512i c0 = q0, c1 = q1;
  if (wide) {
    const __m512i half = _mm512_set1_epi32(64);
    c0 = _mm512_srai_epi32(_mm512_add_epi32(q0, half), 7);
    c1 = _mm512_srai_epi32(_mm512_add_epi32(q1, half), 7);
    auto* fine = reinterpret_cast<__m128i*>(cell + kCellFine + slot * 32);
    _mm_storeu_si128(fine, _mm512_cvtepi32_epi8(_mm512_sub_epi32(q0, _mm512_slli_epi32(c0, 7))));
    _mm_storeu_si128(fine + 1,
                     _mm512_cvtepi32_epi8(_mm512_sub_epi32(q1, _mm512_slli_epi32(c1, 7))));
  }
  auto* codes = reinterpret_cast<__m128i*>(cell + kCellCodes + slot * 32);
  _mm_storeu_si128(codes, _mm512_cvtepi32_epi8(c0));
  _mm_storeu_si128(codes + 1, _mm512_cvtepi32_epi8(c1));
  const std::int32_t sums[2] = {_mm512_reduce_add_epi32(q0), _mm512_reduce_add_epi32(q1)};
  store_sums(scale, sums, slot, cell);
}

}  // namespace
}  // namespace quire
