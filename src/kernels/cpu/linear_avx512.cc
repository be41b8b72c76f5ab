#include "kernels/cpu/linear_512.h"

namespace quire {
namespace {

struct Avx512 : Floats512 {
  static constexpr bool kHasVnni = false;
  static I multiply_pairs(I codes, I a) { return _mm512_maddubs_epi16(codes, a); }
  static I add_16(I a, I b) { return _mm512_add_epi16(a, b); }
  static I widen_pairs(I v) { return _mm512_madd_epi16(v, _mm512_set1_epi16(1)); }
  // Signed times signed: the sign moves to the activation, and 128 * 127 * 2 still fits 16 bits.
  static I dot_bytes(I sum, I codes, I a) {
    const I w = _mm512_xor_si512(codes, _mm512_set1_epi8(-128));  // takes the offset away
    const I signed_a = _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(w), _mm512_setzero_si512(), a);
    return add_int(sum, widen_pairs(multiply_pairs(_mm512_abs_epi8(w), signed_a)));
  }
};

}  // namespace

const LinearKernels kLinearAvx512 = {quantize, multiply_tiles<Avx512>};

}  // namespace quire
