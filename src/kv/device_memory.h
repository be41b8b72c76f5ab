// kv/device_memory.h - an arena's memory on a GPU: addresses reserved once, pages mapped on demand.
//
// Copies and fills are queued on the stream that runs the steps, so that they come after the work
// already submitted and before the work that follows. Engine thread only.
//
//   TRY(const CudaDevice* gpu, open_cuda());
//   TRY(std::unique_ptr<Memory> memory, reserve_device_memory(*gpu, stream, 64ull << 30));
#pragma once

#include <memory>

#include "kernels/cuda/device.h"
#include "kv/memory.h"

namespace quire {

Result<std::unique_ptr<Memory>> reserve_device_memory(const CudaDevice& device, CudaStream stream,
                                                      std::size_t bytes);

}  // namespace quire
