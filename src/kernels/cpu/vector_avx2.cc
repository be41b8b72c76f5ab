#include "kernels/cpu/vector_impl.h"

namespace quire {

extern const VectorKernels kVectorAvx2 = {
    rms_norm, layer_norm, rope,    add,     add_scaled, silu_mul, gelu_mul, clamped_mul, gelu,
    gelu_erf, scale,      shifted, softcap, max,        argmax,   sum_exp,  above};

}  // namespace quire
