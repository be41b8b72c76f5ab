// model/packed_weights.h - weights as the forward pass on a CPU reads them: packed matrices
// (kernels/linear.h) in one huge-page region.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "kernels/linear.h"
#include "model/huge_buffer.h"
#include "model/weights.h"

namespace quire {

// Outputs [first, first + matrix.outputs) of a wider projection. Files may store its parts in
// different types.
struct ProjectionPart {
  std::uint32_t first;
  PackedMatrix matrix;
};

// Gate and up as one matrix, 32 outputs of each in turn, so that one thread has both factors of a
// product side by side. Two matrices if the file stores them in different types, or up alone.
inline constexpr std::uint32_t kGateUpUnit = 32;
struct PackedPair {
  bool interleaved = false;
  PackedMatrix both, gate, up;
};

// Which kinds of activations weights multiply.
struct ActivationKinds {
  bool quantized = false, half_sums = false, plain = false;
};

// Rows of the embedding are decoded one by one, from a copy of what the file has.
struct PackedWeights : WeightsIn<PackedMatrix, std::vector<float>, std::vector<ProjectionPart>,
                                 PackedPair, TensorView> {
  HugeBuffer memory, table;  // of matrices, of embeddings
  ActivationKinds kinds;
};

Result<PackedWeights> load_packed_weights(const ModelSource& source, ThreadPool& pool);

}  // namespace quire
