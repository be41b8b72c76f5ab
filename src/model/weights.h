// model/weights.h - weights as the forward pass reads them: packed matrices in one huge-page
// region.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/linear.h"
#include "model/config.h"
#include "model/weights_source.h"

namespace quire {

// Zeroed anonymous memory on huge pages where the system allows.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  explicit HugeBuffer(std::size_t bytes);
  HugeBuffer(HugeBuffer&& o) noexcept { swap(o); }
  HugeBuffer& operator=(HugeBuffer&& o) noexcept {
    HugeBuffer(std::move(o)).swap(*this);
    return *this;
  }
  ~HugeBuffer();
  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

 private:
  void swap(HugeBuffer& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Outputs [first, first + matrix.outputs) of a wider projection. Files may store its parts in
// different types.
struct ProjectionPart {
  std::uint32_t first;
  PackedMatrix matrix;
};

struct LayerWeights {
  std::vector<ProjectionPart> qkv;  // query heads, then key heads, then value heads
  std::vector<float> qkv_bias;      // same order; empty without bias
  PackedMatrix out;
  // Gate and up, 32 of each in turn, so that one thread has both halves of a product side by side;
  // or two matrices where the file stores them in different types.
  bool gate_up_interleaved = false;
  PackedMatrix gate_up, gate, up;
  PackedMatrix down;
  std::vector<float> attention_norm, feed_forward_norm, post_attention_norm, post_feed_forward_norm,
      q_norm, k_norm;
};

inline constexpr std::uint32_t kGateUpUnit = 32;

struct Weights {
  TensorView embedding;  // rows are decoded one by one, straight from the file
  PackedMatrix head;
  std::vector<float> output_norm;
  std::vector<LayerWeights> layers;
  HugeBuffer memory;
};

Result<Weights> load_weights(const ModelSource& source, ThreadPool& pool);

}  // namespace quire
