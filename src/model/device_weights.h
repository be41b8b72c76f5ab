// model/device_weights.h - weights on a GPU as its matrix products want them: bf16, row by row, or
// packed (model/weight_codes.h).
//
// Quantized files are decoded at load unless they are to be packed. Query, key and value projections
// become one matrix, gate and up another, in turns of 8 rows. Used by model/device_model.cc.
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

// What the matrices of such a model take on a device: two bytes for each number, or with what is
// packed as such, and room for one of those at a time. `automatic`: bf16.
std::uint64_t device_weight_bytes(const ModelSource& source, WeightStorage storage);

Result<DeviceWeights> load_device_weights(const ModelSource& source, const CudaDevice& device,
                                          CudaStream stream, WeightStorage storage);

}  // namespace quire
