#include "kernels/cpu/linear_512.h"

namespace quire {
namespace {

struct Avx512 : Lanes512 {
  // vpmaddubsw adds two products in 16 bits: exact while codes stay below 130. Bigger ones are
  // widened.
  template <bool kByteCodes>
  static I dot(I sum, I codes, I a) {
    if constexpr (!kByteCodes)
      return _mm512_add_epi32(
          sum, _mm512_madd_epi16(_mm512_maddubs_epi16(codes, a), _mm512_set1_epi16(1)));
    const I even = _mm512_madd_epi16(_mm512_and_si512(codes, _mm512_set1_epi16(255)),
                                     _mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8));
    const I odd = _mm512_madd_epi16(_mm512_srli_epi16(codes, 8), _mm512_srai_epi16(a, 8));
    return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
  }
};

}  // namespace

const LinearKernels kLinearAvx512 = {quantize, multiply_tiles<Avx512>};

}  // namespace quire
