#include "kernels/cpu/vector_impl.h"

namespace quire {

extern const VectorKernels kVectorAvx2 = {rms_norm, rope,    add, silu_mul, gelu_mul, scale,
                                          shifted,  softcap, max, argmax,   sum_exp,  above};

}  // namespace quire
