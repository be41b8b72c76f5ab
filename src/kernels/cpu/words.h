// kernels/cpu/words.h - sixteen pairs of 16-bit integers in the place of sixteen int32 (bytes.h), and
// their step:
//   sum += a.even * b.even + a.odd * b.odd
// which VPDPWSSD does in one instruction (twice the rate of f32) and everything else in two. A pair
// is a 32-bit word, the even element in its low half. Integers are exact, so any order is alike.
#pragma once

#include "kernels/cpu/bytes.h"

namespace quire {
namespace {

inline constexpr float kWordBias = 12582912.0f;  // 1.5 * 2^23

#ifdef __AVX512F__

QUIRE_INLINE Ints dot_pairs(Ints sum, Ints a, Ints b) {
#ifdef __AVX512VNNI__
  // As an instruction: of the intrinsic GCC 12 keeps half of the sums on the stack.
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return add(sum, _mm512_madd_epi16(a, b));
#endif
}
// Of numbers to which kWordBias was added, which rounds them (ties to even) and leaves the integer
// in the low bits.
QUIRE_INLINE Ints make_words(Floats even, Floats odd) {
  const __m512i order =
      _mm512_set_epi16(62, 30, 60, 28, 58, 26, 56, 24, 54, 22, 52, 20, 50, 18, 48, 16, 46, 14, 44,
                       12, 42, 10, 40, 8, 38, 6, 36, 4, 34, 2, 32, 0);
  return _mm512_permutex2var_epi16(as_ints(even), order, as_ints(odd));
}

#else

QUIRE_INLINE Ints dot_pairs(Ints sum, Ints a, Ints b) {
  return add(sum, {_mm256_madd_epi16(a.low, b.low), _mm256_madd_epi16(a.high, b.high)});
}
QUIRE_INLINE Ints make_words(Floats even, Floats odd) {
  const Ints low = as_ints(even), high = shift_left<16>(as_ints(odd));
  return {_mm256_blend_epi16(low.low, high.low, 0xaa),
          _mm256_blend_epi16(low.high, high.high, 0xaa)};
}

#endif

}  // namespace
}  // namespace quire
