// kernels/cpu/bytes.h - sixteen int32, or 64 bytes in their place, as one value: one AVX-512
// register, or two of AVX2. For kernels that multiply codes; floats.h is for floats. Element i of a
// product is the sum over bytes 4 i ... 4 i + 3.
#pragma once

#include "kernels/cpu/floats.h"

namespace quire {
namespace {

#ifdef __AVX512F__

using Ints = __m512i;

QUIRE_INLINE Ints zero_ints() { return _mm512_setzero_si512(); }
QUIRE_INLINE Ints all_ints(std::int32_t x) { return _mm512_set1_epi32(x); }
QUIRE_INLINE Ints load_ints(const void* p) { return _mm512_loadu_si512(p); }
QUIRE_INLINE void store_ints(void* p, Ints x) { _mm512_storeu_si512(p, x); }
QUIRE_INLINE Ints all_bytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
QUIRE_INLINE Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
QUIRE_INLINE Ints sub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
QUIRE_INLINE Ints both(Ints a, Ints b) { return _mm512_and_si512(a, b); }
QUIRE_INLINE Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
template <int kBits>
QUIRE_INLINE Ints shift_left(Ints a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
QUIRE_INLINE Ints shift_right(Ints a) {  // keeps the sign
  return _mm512_srai_epi32(a, kBits);
}
template <int kBits>
QUIRE_INLINE Ints drop_bits(Ints a) {  // from the bottom, with zeros from above
  return _mm512_srli_epi32(a, kBits);
}
QUIRE_INLINE Ints drop_bits(Ints a, int bits) {
  return _mm512_srl_epi32(a, _mm_cvtsi32_si128(bits));
}
QUIRE_INLINE Ints most_unsigned(Ints a, Ints b) { return _mm512_max_epu32(a, b); }
QUIRE_INLINE Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
QUIRE_INLINE Ints rounded(Floats x) { return _mm512_cvtps_epi32(x); }
QUIRE_INLINE Ints as_ints(Floats x) { return _mm512_castps_si512(x); }
QUIRE_INLINE Floats as_floats(Ints x) { return _mm512_castsi512_ps(x); }
// Each byte, below 16, replaced by that entry of a table of 16.
struct Table {
  Ints entries;
};
QUIRE_INLINE Table table_of(const std::uint8_t* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
QUIRE_INLINE Ints look_up(Table t, Ints codes) { return _mm512_shuffle_epi8(t.entries, codes); }
// Sixteen bytes in every quarter; four bytes in every int32.
QUIRE_INLINE Ints sixteen_bytes(const std::int8_t* p) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <int kJ>
QUIRE_INLINE Ints four_of(Ints sixteen) {
  return _mm512_shuffle_epi32(sixteen, static_cast<_MM_PERM_ENUM>(0x55 * kJ));
}
// The low bytes of 16 ints, side by side.
QUIRE_INLINE void store_low_bytes(std::int8_t* p, Ints a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

#ifdef __AVX512VNNI__
// Sums of unsigned bytes times signed ones; kSmall promises that two products fit 16 bits.
template <bool kSmall>
QUIRE_INLINE Ints dot(Ints sum, Ints codes, Ints by) {
  return _mm512_dpbusd_epi32(sum, codes, by);
}
#else
template <bool kSmall>
QUIRE_INLINE Ints dot(Ints sum, Ints codes, Ints by) {
  const Ints one = _mm512_set1_epi16(1);
  if constexpr (kSmall) return add(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, by), one));
  const Ints nibble = all_bytes(15);
  const Ints low = _mm512_maddubs_epi16(both(codes, nibble), by);
  const Ints high = _mm512_maddubs_epi16(both(drop_bits<4>(codes), nibble), by);
  sum = add(sum, _mm512_madd_epi16(high, _mm512_set1_epi16(16)));
  return add(sum, _mm512_madd_epi16(low, one));
}
#endif

#else

struct Ints {
  __m256i low, high;
};

QUIRE_INLINE __m256i load_8_ints(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
QUIRE_INLINE Ints zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
QUIRE_INLINE Ints all_ints(std::int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
QUIRE_INLINE Ints load_ints(const void* p) {
  return {load_8_ints(p), load_8_ints(static_cast<const char*>(p) + 32)};
}
QUIRE_INLINE void store_ints(void* p, Ints x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.low);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.high);
}
QUIRE_INLINE Ints all_bytes(int x) {
  const __m256i b = _mm256_set1_epi8(static_cast<char>(x));
  return {b, b};
}
QUIRE_INLINE Ints add(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
QUIRE_INLINE Ints sub(Ints a, Ints b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
QUIRE_INLINE Ints both(Ints a, Ints b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
QUIRE_INLINE Ints either(Ints a, Ints b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
template <int kBits>
QUIRE_INLINE Ints shift_left(Ints a) {
  return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
}
template <int kBits>
QUIRE_INLINE Ints shift_right(Ints a) {
  return {_mm256_srai_epi32(a.low, kBits), _mm256_srai_epi32(a.high, kBits)};
}
template <int kBits>
QUIRE_INLINE Ints drop_bits(Ints a) {
  return {_mm256_srli_epi32(a.low, kBits), _mm256_srli_epi32(a.high, kBits)};
}
QUIRE_INLINE Ints drop_bits(Ints a, int bits) {
  const __m128i count = _mm_cvtsi32_si128(bits);
  return {_mm256_srl_epi32(a.low, count), _mm256_srl_epi32(a.high, count)};
}
QUIRE_INLINE Ints most_unsigned(Ints a, Ints b) {
  return {_mm256_max_epu32(a.low, b.low), _mm256_max_epu32(a.high, b.high)};
}
QUIRE_INLINE Floats to_floats(Ints a) {
  return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}
QUIRE_INLINE Ints rounded(Floats x) {
  return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)};
}
QUIRE_INLINE Ints as_ints(Floats x) {
  return {_mm256_castps_si256(x.low), _mm256_castps_si256(x.high)};
}
QUIRE_INLINE Floats as_floats(Ints x) {
  return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)};
}
struct Table {
  __m256i entries;
};
QUIRE_INLINE Table table_of(const std::uint8_t* p) {
  return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
QUIRE_INLINE Ints look_up(Table t, Ints codes) {
  return {_mm256_shuffle_epi8(t.entries, codes.low), _mm256_shuffle_epi8(t.entries, codes.high)};
}
QUIRE_INLINE Ints sixteen_bytes(const std::int8_t* p) {
  const __m256i b =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {b, b};
}
template <int kJ>
QUIRE_INLINE Ints four_of(Ints sixteen) {
  return {_mm256_shuffle_epi32(sixteen.low, 0x55 * kJ),
          _mm256_shuffle_epi32(sixteen.high, 0x55 * kJ)};
}
QUIRE_INLINE void store_low_bytes(std::int8_t* p, Ints a) {
  const __m256i byte = _mm256_set1_epi32(0xff);
  const __m256i words = _mm256_packus_epi32(_mm256_and_si256(a.low, byte),
                                            _mm256_and_si256(a.high, byte));  // by 4: 0 2 1 3
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}

template <bool kSmall>
QUIRE_INLINE __m256i dot_8(__m256i sum, __m256i codes, __m256i by) {
  const __m256i one = _mm256_set1_epi16(1);
  if constexpr (kSmall)
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, by), one));
  const __m256i nibble = _mm256_set1_epi8(15);
  const __m256i low = _mm256_maddubs_epi16(_mm256_and_si256(codes, nibble), by);
  const __m256i high =
      _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi32(codes, 4), nibble), by);
  sum = _mm256_add_epi32(sum, _mm256_madd_epi16(high, _mm256_set1_epi16(16)));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(low, one));
}
template <bool kSmall>
QUIRE_INLINE Ints dot(Ints sum, Ints codes, Ints by) {
  return {dot_8<kSmall>(sum.low, codes.low, by.low), dot_8<kSmall>(sum.high, codes.high, by.high)};
}

#endif

QUIRE_INLINE __m256i low_8(Ints a) {
#ifdef __AVX512F__
  return _mm512_castsi512_si256(a);
#else
  return a.low;
#endif
}
QUIRE_INLINE __m256i high_8(Ints a) {
#ifdef __AVX512F__
  return _mm512_extracti64x4_epi64(a, 1);
#else
  return a.high;
#endif
}

QUIRE_INLINE __m128i add_halves(Ints x) {  // four sums of four elements each
  const __m256i a = _mm256_add_epi32(low_8(x), high_8(x));
  return _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
QUIRE_INLINE __m128i most_halves(Ints x) {
  const __m256i a = _mm256_max_epu32(low_8(x), high_8(x));
  return _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
// The sum, and the largest element, of each of four vectors.
QUIRE_INLINE __m128i sums_of(const Ints (&x)[4]) {
  const __m128i a = add_halves(x[0]), b = add_halves(x[1]), c = add_halves(x[2]),
                d = add_halves(x[3]);
  const __m128i ab = _mm_add_epi32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
  const __m128i cd = _mm_add_epi32(_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
  return _mm_add_epi32(_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd));
}
QUIRE_INLINE __m128i largest_of_each(const Ints (&x)[4]) {
  const __m128i a = most_halves(x[0]), b = most_halves(x[1]), c = most_halves(x[2]),
                d = most_halves(x[3]);
  const __m128i ab = _mm_max_epu32(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
  const __m128i cd = _mm_max_epu32(_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
  return _mm_max_epu32(_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd));
}

// The bytes of 64 ints whose lower halves are within 0..255 or -128..127; the upper halves may be
// anything.
template <bool kUnsigned>
QUIRE_INLINE Ints pack_bytes(const Ints (&x)[4]) {
#ifdef __AVX512F__
  // Words so that packing them, which goes by quarters, leaves the fours that a quarter of
  // each had: one permutation then.
  const Ints words =
      _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                       24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const Ints ab = _mm512_permutex2var_epi16(x[0], words, x[1]),
             cd = _mm512_permutex2var_epi16(x[2], words, x[3]);
  const Ints bytes = kUnsigned ? _mm512_packus_epi16(ab, cd) : _mm512_packs_epi16(ab, cd);
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes);
#else
  const __m256i byte = _mm256_set1_epi32(0xff), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto low = [&](__m256i a, __m256i b) QUIRE_LAMBDA {
    return _mm256_packus_epi32(_mm256_and_si256(a, byte), _mm256_and_si256(b, byte));
  };
  const auto two = [&](Ints a, Ints b) QUIRE_LAMBDA {
    const __m256i bytes = _mm256_packus_epi16(low(a.low, a.high), low(b.low, b.high));
    return _mm256_permutevar8x32_epi32(bytes, order);
  };
  return {two(x[0], x[1]), two(x[2], x[3])};
#endif
}

}  // namespace
}  // namespace quire
