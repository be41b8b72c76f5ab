#include "kernels/cpu/linear_512.h"

namespace quire {
namespace {

struct Vnni : Floats512 {
  static constexpr bool kHasVnni = true;
  static I dot(I sum, I codes, I a) { return _mm512_dpbusd_epi32(sum, codes, a); }
  static I dot_bytes(I sum, I codes, I a) { return dot(sum, codes, a); }
};

}  // namespace

const LinearKernels kLinearVnni = {quantize, multiply_tiles<Vnni>};

}  // namespace quire
