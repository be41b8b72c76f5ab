// model/device_weights.h - weights on a GPU as its matrix products want them: bf16, row by row, or
// packed (model/weight_codes.h).
//
// Quantized weights are decoded while loading, unless they stay packed. Query, key and value
// projections become one matrix; gate and up become another one in which they alternate every 8
// rows. Used by model/device_model.cc.
#pragma once

#include <vector>

#include "kernels/cuda/device.h"
#include "model/device_buffer.h"
#include "model/model.h"
#include "model/weights.h"

namespace quire {

struct DeviceMatrix {
  DeviceBuffer data;  // bf16, unless `kind` has bits
  WeightCodes kind;
  std::uint32_t outputs = 0, inputs = 0;

  WeightCodes codes() const {
    return kind.bits ? WeightCodes{data.data(), kind.bits, kind.form} : WeightCodes{};
  }
};

// The head is empty where it is the embedding. Vectors are f32.
struct DeviceWeights : WeightsIn<DeviceMatrix, DeviceBuffer> {
  std::uint64_t bytes = 0;
  std::uint64_t unpacked_bytes = 0;  // of the largest packed matrix, as bf16
};

// The kernels take heads of 64, 128 or 256, so narrower ones are padded.
std::uint32_t device_head_width(std::uint32_t dim);
// The model as the kernels see it: all heads as wide as that.
ModelConfig device_config(const ModelConfig& config);

// Bytes that a model's matrices take on a device: as bf16, or packed with room to unpack one matrix
// at a time. `automatic` counts as bf16.
std::uint64_t device_weight_bytes(const ModelSource& source, WeightStorage storage);

Result<DeviceWeights> load_device_weights(const ModelSource& source, const CudaDevice& device,
                                          CudaStream stream, WeightStorage storage);

}  // namespace quire
