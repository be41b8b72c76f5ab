#include "kernels/cpu/attend_impl.h"

namespace quire {

extern const AttendKernels kAttendAvx2 = {store_key, store_value, attend, merge};

}  // namespace quire
