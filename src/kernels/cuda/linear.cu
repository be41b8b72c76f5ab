// Which kernel multiplies: all of them give the same bits, so the choice is one of speed.
#include "kernels/cuda/kernels.cuh"

#include <cuda_runtime.h>

namespace quire::cuda {

int linear(const LinearArgs& a, CudaStream stream) {
  return a.rows <= kPackedRowsMax ? linear_stream(a, stream) : linear_library(a, stream);
}

int tune_linear(const LinearArgs& a, CudaStream stream) {
  return a.rows <= kPackedRowsMax ? 0 : tune_library(a, stream);
}

}  // namespace quire::cuda
