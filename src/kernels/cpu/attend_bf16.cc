#include "kernels/cpu/sealed_impl.h"

namespace quire {

extern const AttendKernels kAttendBf16 = {store_key, store_value,   attend,
                                          merge,     attend_sealed, merge_sealed};

}  // namespace quire
