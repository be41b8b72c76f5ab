// model/device_buffer.h - owns memory that a GPU reads: device memory, or pinned memory of the
// host.
//
//   TRY(DeviceBuffer rows, DeviceBuffer::allocate(device, 1 << 20, "the scratch of a step"));
//   kernel(rows.as<float>());
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "kernels/cuda/device.h"

namespace quire {

class DeviceBuffer {
 public:
  static Result<DeviceBuffer> allocate(const CudaDevice& device, std::size_t bytes,
                                       std::string_view what) {
    void* data = nullptr;
    TRY_STATUS(cuda_status(device, device.api->allocate(bytes, &data), what));
    return DeviceBuffer(data, device.api->free, bytes);
  }
  static Result<DeviceBuffer> pinned(const CudaDevice& device, std::size_t bytes) {
    void* data = nullptr;
    TRY_STATUS(cuda_status(device, device.api->allocate_host(bytes, &data), "pinned memory"));
    return DeviceBuffer(data, device.api->free_host, bytes);
  }

  DeviceBuffer() = default;
  std::byte* data() const { return as<std::byte>(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_.get());
  }
  std::size_t size() const { return bytes_; }

 private:
  DeviceBuffer(void* data, void (*free)(void*), std::size_t bytes)
      : data_(data, free), bytes_(bytes) {}

  std::unique_ptr<void, void (*)(void*)> data_{nullptr, nullptr};
  std::size_t bytes_ = 0;
};

}  // namespace quire
