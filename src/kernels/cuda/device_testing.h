// kernels/cuda/device_testing.h - what tests of the CUDA kernels share: device memory for a test, and
// reproducible noise. Tests skip where there is no GPU.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/packed.h"
#include "kernels/cuda/plan_testing.h"

namespace quire {

using Bits = std::vector<std::uint16_t>;

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = open_cuda();
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    api_ = device.value()->api;
    ok(api_->make_stream(&stream_));
  }
  void TearDown() override {
    for (void* p : held_) api_->free(p);
  }
  void ok(int error) { ASSERT_EQ(error, 0) << api_->error_text(error); }

  void* room(std::size_t bytes, int fill = 0xff) {
    void* p = nullptr;
    ok(api_->allocate(bytes, &p));
    ok(api_->fill(p, fill, bytes, stream_));
    held_.push_back(p);
    return p;
  }
  template <class T>
  T* up(const std::vector<T>& v) {
    void* p = room(v.size() * sizeof(T));
    ok(api_->copy_to_device(p, v.data(), v.size() * sizeof(T), stream_));
    ok(api_->wait(stream_));
    return static_cast<T*>(p);
  }
  template <class T>
  std::vector<T> down(const void* p, std::size_t count) {
    std::vector<T> v(count);
    ok(api_->copy_to_host(v.data(), p, count * sizeof(T), stream_));
    ok(api_->wait(stream_));
    return v;
  }
  void use(const CudaPlan& plan, AttendArgs& a) {
    use_plan(
        plan, a, [&](const auto& v) { return up(v); },
        [&](std::size_t bytes) { return room(bytes); });
  }
  // Rows as the kernels want them; padding holds NaN.
  Bits activations(const Bits& rows, std::uint32_t count, std::uint32_t width) {
    Bits out(activation_elements(count, width), 0x7fff);
    for (std::uint32_t r = 0; r < count; ++r)
      for (std::uint32_t k = 0; k < width; ++k)
        out[activation_at(count, width, r, k)] = rows[std::size_t{r} * width + k];
    return out;
  }

  const CudaApi* api_ = nullptr;
  CudaStream stream_ = nullptr;
  std::vector<void*> held_;
};

inline Bits noise(std::uint64_t seed, std::size_t count, float spread = 1) {
  Random random(seed);
  Bits out(count);
  for (auto& x : out) x = f32_to_bf16(spread * static_cast<float>(4 * random.unit() - 2));
  return out;
}
inline std::vector<float> floats(std::uint64_t seed, std::size_t count, float low, float high) {
  Random random(seed);
  std::vector<float> out(count);
  for (auto& x : out) x = low + (high - low) * static_cast<float>(random.unit());
  return out;
}

}  // namespace quire
