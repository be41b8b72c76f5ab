#include "kernels/cpu/select_impl.h"

namespace quire {

extern const SelectKernels kSelectAvx2 = {select_widen, select_bound_scores, select_antidiagonals,
                                          select_products};

}  // namespace quire
