// model/weights.h - weights as the forward pass reads them: packed matrices in one huge-page
// region.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/linear.h"
#include "model/config.h"
#include "model/huge_buffer.h"
#include "model/weights_source.h"

namespace quire {

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
