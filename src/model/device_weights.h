// model/device_weights.h - weights on a GPU as its matrix products want them: bf16, row by row.
//
// Quantized files are decoded at load. Query, key and value projections become one matrix, gate and
// up another, in turns of 8 rows. Used by model/device_model.cc.
#pragma once

#include <vector>

#include "kernels/cuda/device.h"
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

struct DeviceLayer {
  DeviceBuffer qkv, out, gate_up, down;                      // bf16
  DeviceBuffer qkv_bias, attention_norm, feed_forward_norm;  // f32; empty where there is none
  DeviceBuffer post_attention_norm, post_feed_forward_norm, q_norm, k_norm;
};

struct DeviceWeights {
  DeviceBuffer embedding, head;  // head is empty where it is the embedding
  DeviceBuffer output_norm;
  std::vector<DeviceLayer> layers;
  std::uint64_t bytes = 0;
};

// The model as the kernels see it: heads are 64, 128 or 256 wide, what is missing is zero. Pairs that
// are rotated together lie half a head apart, so each half of a key or query is padded by itself;
// values at their end.
ModelConfig device_config(const ModelConfig& config);

// What the matrices of such a model take on a device: two bytes for each number.
std::uint64_t device_weight_bytes(const ModelConfig& config);

Result<DeviceWeights> load_device_weights(const ModelSource& source, const CudaDevice& device,
                                          CudaStream stream);

}  // namespace quire
