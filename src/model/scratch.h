// model/scratch.h - memory that the threads of a step share, and what each has for itself. Sized once
// from the specs of a model's layers. Private to model/.
#pragma once

#include <vector>

#include "kernels/linear.h"
#include "kernels/select.h"
#include "model/model.h"
#include "model/packed_weights.h"

namespace quire {

inline float* floats(const HugeBuffer& b) { return reinterpret_cast<float*>(b.data()); }

// What a step turns out to need beyond what was sized at the start: a few pages.
void grow(HugeBuffer& buffer, std::size_t bytes);

// Activations on their way into a matrix: encoded, plain, or both, as its weights want them.
struct Site {
  HugeBuffer encoded, plain;
  ActivationRows view, fine;  // in the mode asked for, and in int16; over the same bytes

  Status size(Activations mode, ActivationKinds kinds, std::uint32_t rows, std::uint32_t inputs);
};

// Up to this many rows each thread prepares all activations for itself: cheaper than meeting at a
// barrier.
inline constexpr std::uint32_t kFewRows = 4;

// What one thread owns.
struct WorkerScratch {
  Site hidden, attended;   // inputs of few rows
  std::vector<float> x;    // residual stream of few rows
  std::vector<float> row;  // one row, normalized
  HugeBuffer unit;  // outputs of one unit (a head, or 32 gates and 32 ups) for all rows of a step
  HugeBuffer attend;
  std::vector<float> plain_queries;  // of a tap, before rotation
  SelectScratch select;
};

struct Scratch {
  // Shared; [rows][...].
  HugeBuffer x, y, queries, attended_rows, partials;
  HugeBuffer tail_x;  // residual stream of the rows whose logits are wanted
  Site hidden, attended, inner, head;
  std::vector<WorkerScratch> workers;

  Status size(const ModelConfig& config, const ModelOptions& options, ActivationKinds kinds,
              std::uint32_t workers);
};

}  // namespace quire
