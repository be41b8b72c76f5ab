// Which kernel multiplies: all of them give the same bits, so the choice is one of speed.
#include "kernels/cuda/kernels.cuh"

#include <cuda_runtime.h>

namespace quire::cuda {

int linear(const LinearArgs& a, CudaStream stream) {
  const bool coded = a.codes.data != nullptr;
  if (a.rows <= kPackedRowsMax) return coded ? linear_coded(a, stream) : linear_stream(a, stream);
  if (coded)
    if (const int e = unpack_codes(a, stream)) return e;
  return linear_library(a, stream);
}

int tune_linear(const LinearArgs& a, CudaStream stream) {
  if (a.rows <= kPackedRowsMax) return 0;
  if (a.codes.data)
    if (const int e = unpack_codes(a, stream)) return e;
  return tune_library(a, stream);
}

}  // namespace quire::cuda
