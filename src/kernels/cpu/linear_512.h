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

struct Floats512 {
  using I = __m512i;
  using F = __m512;
  static constexpr int kElements = 16, kVectors = 1, kRegisters = 32;

  // Rows of a tile: accumulators should stay in registers.
  template <bool kTwoTerms>
  static constexpr int rows_max() {
    return kRowGroup;
  }

  static void prefetch(const std::byte* p) { _mm_prefetch(p, _MM_HINT_T1); }
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
  static I load_bytes(const std::byte* p) {  // sixteen int8, widened
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <int kBits>
  static I shift_left_16(I v) {
    return _mm512_slli_epi16(v, kBits);
  }
  template <int kBits>
  static I shift_right_16(I v) {
    return _mm512_srli_epi16(v, kBits);
  }
  static I mask(I v, int byte) {
    return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(byte)));
  }
  static I merge(I a, I v, int byte) {  // a | (v & byte)
    return _mm512_ternarylogic_epi32(a, v, _mm512_set1_epi8(static_cast<char>(byte)), 0xf8);
  }
  static I look_up(const std::uint8_t* table, I v) {
    const __m128i levels = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), v);
  }
  static F look_up_float(const float* table, I v) {
    return _mm512_permutexvar_ps(v, _mm512_loadu_ps(table));
  }
  static F one_float(float v) { return _mm512_set1_ps(v); }
  static I load_unsigned_bytes(const std::byte* p) {  // sixteen, widened
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  // Sixteen e4m3 as f16 bits that lie alike, which are 2^-8 of their values.
  static F load_e4m3(const std::byte* p) {
    const __m256i high = _mm256_slli_epi16(
        _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 8);
    const __m256i size = _mm256_and_si256(_mm256_srli_epi16(high, 1), _mm256_set1_epi16(0x3f80));
    return _mm512_cvtph_ps(_mm256_or_si256(
        size, _mm256_and_si256(high, _mm256_set1_epi16(static_cast<short>(0x8000)))));
  }
  template <int kBits>
  static I shift_left(I v) {
    return _mm512_slli_epi32(v, kBits);
  }
  static I add_int(I a, I b) { return _mm512_add_epi32(a, b); }
  static I sub_int(I a, I b) { return _mm512_sub_epi32(a, b); }
  static I mul_int(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
};

// Sums of bytes 0..15 and 16..31.
inline __m128i halves_sum(__m256i codes) {
  const __m256i above = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));  // adds 128
  const __m256i eights = _mm256_sad_epu8(above, _mm256_setzero_si256());
  const __m256i pairs = _mm256_add_epi64(eights, _mm256_bsrli_epi128(eights, 8));
  return _mm_sub_epi32(
      _mm_unpacklo_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)),
      _mm_set1_epi32(16 * 128));
}

inline __m256i to_bytes(__m512i a, __m512i b) {
  return _mm256_set_m128i(_mm512_cvtepi32_epi8(b), _mm512_cvtepi32_epi8(a));
}

template <bool kWide>
inline void quantize_block(const float* x, bool halves, std::uint32_t slot, std::byte* cell) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
  const std::uint32_t bits = _mm512_reduce_max_epu32(
      _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), magnitude),
                       _mm512_and_si512(_mm512_castps_si512(x1), magnitude)));
  float amax;
  std::memcpy(&amax, &bits, 4);
  constexpr float kTop = kWide ? kInt16Max : kInt8Max;
  const bool finite = bits < 0x7f800000u, coded = finite && amax >= kActivationMin;
  const float scale = !finite ? __builtin_nanf("") : coded ? amax / kTop : 0.0f;
  const auto mask = static_cast<__mmask16>(coded ? 0xffff : 0);
  const __m512 inverse = _mm512_set1_ps(kTop / amax);
  const __m512i q0 = _mm512_maskz_cvtps_epi32(mask, _mm512_mul_ps(x0, inverse));
  const __m512i q1 = _mm512_maskz_cvtps_epi32(mask, _mm512_mul_ps(x1, inverse));
  auto* codes = reinterpret_cast<__m256i*>(cell + kCellCodes + slot * 32);
  __m128i sums;
  if constexpr (kWide) {
    const __m512i half = _mm512_set1_epi32(64);
    const __m512i c0 = _mm512_srai_epi32(_mm512_add_epi32(q0, half), 7);
    const __m512i c1 = _mm512_srai_epi32(_mm512_add_epi32(q1, half), 7);
    const __m256i coarse = to_bytes(c0, c1);
    const __m256i fine = to_bytes(_mm512_sub_epi32(q0, _mm512_slli_epi32(c0, 7)),
                                  _mm512_sub_epi32(q1, _mm512_slli_epi32(c1, 7)));
    _mm256_storeu_si256(codes, coarse);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(cell + kCellFine + slot * 32), fine);
    sums = _mm_add_epi32(_mm_slli_epi32(halves_sum(coarse), 7), halves_sum(fine));
  } else {
    const __m256i all = to_bytes(q0, q1);
    _mm256_storeu_si256(codes, all);
    sums = halves_sum(all);
  }
  const std::int32_t both[2] = {_mm_cvtsi128_si32(sums), _mm_extract_epi32(sums, 1)};
  store_sums(scale, both, halves, slot, cell);
}

}  // namespace
}  // namespace quire
