// kernels/cuda/launch.cuh - starts kernels. On Hopper a kernel may begin while the previous one ends.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "kernels/cuda/api.h"

namespace quire::cuda {

inline cudaStream_t native(CudaStream s) { return reinterpret_cast<cudaStream_t>(s); }

// Which of the two codes (ptx.cuh) this device runs: 90, 80, or 0 if it runs neither. In runtime.cu.
int code_version();
inline bool hopper() { return code_version() == 90; }

template <class... Parameters, class... Arguments>
int launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
           CudaStream stream, Arguments&&... arguments) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = native(stream);
  config.attrs = &overlap;
  config.numAttrs = hopper() ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...);
}

// Kernels that keep more than 48 KB must say so once.
template <class Kernel>
int allow_shared(Kernel* kernel, std::size_t bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(bytes));
}

// What every GPU from 8.0 on lets a block have is 99 KB; kernels keep some of it for themselves.
constexpr std::size_t kSharedAnywhere = 98 << 10;

inline int device_attribute(cudaDeviceAttr what) {
  int device = 0, n = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&n, what, device);
  return n;
}
inline int multiprocessors() {
  static const int count = device_attribute(cudaDevAttrMultiProcessorCount);
  return count;
}
inline std::size_t shared_bytes_max() {  // of a block
  static const int bytes = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return static_cast<std::size_t>(bytes);
}

}  // namespace quire::cuda
