// kernels/cuda/device.h - finds the GPU: loads libquire_cuda.so, if it is there, and opens a
// device.
//
// The program itself needs neither CUDA nor a driver. The object is looked for beside the program,
// in ../lib and where the loader looks; QUIRE_CUDA_LIBRARY names another one. Errors say what is
// missing and what would help.
//
//   TRY(const CudaDevice* gpu, open_cuda());
//   TRY_STATUS(cuda_status(*gpu, gpu->api->wait(stream), "waiting for a step"));
#pragma once

#include <string_view>

#include "base/result.h"
#include "kernels/cuda/api.h"

namespace quire {

struct CudaDevice {
  const CudaApi* api;
  CudaDeviceInfo info;
};

// The first device, opened once per process; an error is kept too.
Result<const CudaDevice*> open_cuda();

// Whether there are kernels for it, or what would help.
Status cuda_usable(const CudaDeviceInfo& info);

Status cuda_status(const CudaDevice& device, int error, std::string_view doing);

}  // namespace quire
