#include "kernels/cpu/encoded_impl.h"

namespace quire {

extern const EncodedKernels kEncodedVnni = {prepare, scores, add_values, finish, turn, seal};

}  // namespace quire
