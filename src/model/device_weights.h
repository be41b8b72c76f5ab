// model/device_weights.h - weights on a GPU as its matrix products want them: bf16, row by row, or
// packed (model/weight_codes.h).
//
// Quantized files are decoded at load unless they are to be packed. Query, key and value projections
// become one matrix, gate and up another, in turns of 8 rows. Used by model/device_model.cc.
#pragma once

#include <vector>

#include "kernels/cuda/device.h"
#include "model/model.h"
#include "model/weights_source.h"

namespace quire {

// Device memory that goes with its owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& o) noexcept { swap(o); }
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    DeviceBuffer(std::move(o)).swap(*this);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_) device_->api->free(data_);
  }
  static Result<DeviceBuffer> allocate(const CudaDevice& device, std::size_t bytes,
                                       std::string_view what);

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t size() const { return bytes_; }

 private:
  void swap(DeviceBuffer& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  const CudaDevice* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

struct DeviceMatrix {
  DeviceBuffer data;  // bf16, unless `kind` has bits
  WeightCodes kind;

  WeightCodes codes() const {
    return kind.bits ? WeightCodes{data.data(), kind.bits, kind.form} : WeightCodes{};
  }
};

struct DeviceLayer {
  DeviceMatrix qkv, out, gate_up, down;
  DeviceBuffer qkv_bias, attention_norm, feed_forward_norm;  // f32; empty where there is none
  DeviceBuffer post_attention_norm, post_feed_forward_norm, q_norm, k_norm;
};

struct DeviceWeights {
  DeviceMatrix embedding, head;  // head is empty where it is the embedding
  DeviceBuffer output_norm;
  std::vector<DeviceLayer> layers;
  std::uint64_t bytes = 0;
  std::uint64_t unpacked_bytes = 0;  // of the largest packed matrix, as bf16
};

// The model as the kernels see it: heads are 64, 128 or 256 wide, what is missing is zero. Pairs that
// are rotated together lie half a head apart, so each half of a key or query is padded by itself;
// values at their end.
ModelConfig device_config(const ModelConfig& config);

// What the matrices of such a model take on a device: two bytes for each number, or with what is
// packed as such, and room for one of those at a time. `automatic`: bf16.
std::uint64_t device_weight_bytes(const ModelSource& source, WeightStorage storage);

Result<DeviceWeights> load_device_weights(const ModelSource& source, const CudaDevice& device,
                                          CudaStream stream, WeightStorage storage);

}  // namespace quire
