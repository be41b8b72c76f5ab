#include "kernels/cpu/encoded_impl.h"

namespace quire {

extern const EncodedKernels kEncodedAvx512 = {prepare, scores, add_values, finish, turn, seal};

}  // namespace quire
