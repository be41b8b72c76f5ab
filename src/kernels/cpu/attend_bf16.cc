#include "kernels/cpu/attend_impl.h"

namespace quire {

extern const AttendKernels kAttendBf16 = {store_key, store_value, attend, merge};

}  // namespace quire
