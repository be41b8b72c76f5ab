// model/state.h - what a model holds on a CPU, and the scratch that its passes share. Private to model/.
#pragma once

#include <atomic>
#include <vector>

#include "kernels/linear.h"
#include "kernels/select.h"
#include "kernels/vector.h"
#include "model/adapter/adapted_rows.h"
#include "model/group_steps.h"
#include "model/packed_weights.h"
#include "model/rope.h"
#include "model/routing.h"

namespace quire {

inline float* floats(const HugeBuffer& b) { return reinterpret_cast<float*>(b.data()); }

// Grows a buffer that was too small for a step.
void grow(HugeBuffer& buffer, std::size_t bytes);

// The activations that a matrix multiplies: encoded, plain, or both, as its weights need them.
struct ActivationBuffer {
  HugeBuffer encoded, plain;
  ActivationRows view;  // of the widest layer

  // A view of these bytes as rows of `inputs` numbers. `fine`: in int16, whatever the mode is.
  ActivationRows of(std::uint32_t inputs, bool fine = false) const {
    ActivationRows rows = view;
    rows.inputs = inputs;
    if (fine) rows.mode = Activations::int16;
    return rows;
  }
  Status size(Activations mode, ActivationKinds kinds, std::uint32_t rows, std::uint32_t inputs);
};

// Up to this many rows each thread prepares all activations for itself: cheaper than meeting at a
// barrier.
inline constexpr std::uint32_t kFewRows = 4;

// Of what adapters add, in the first cache.
inline constexpr std::uint32_t kAdapterRowsAtOnce = 32, kAdapterColumnsAtOnce = 64;

// Scratch of one thread.
struct WorkerScratch {
  ActivationBuffer hidden, attended;  // inputs of few rows
  std::vector<float> x;               // residual stream of few rows
  std::vector<float> row;             // one row, normalized
  HugeBuffer unit;  // outputs of one unit (a head, or 32 gates and 32 ups) for all rows of a step
  HugeBuffer attend;
  std::vector<float> plain_queries;  // of a tap, before rotation
  std::vector<float> scores;         // of a row's experts
  std::vector<ExpertChoice> choices;
  ExpertLists lists;
  AdaptedRows adapted;
  std::vector<float> adapter_inputs, adapter_sums;  // of few rows; of some columns and rows
  SelectScratch select;
};

struct Scratch {
  // Shared; [rows][...].
  HugeBuffer x, y, queries, attended_rows, partials;
  HugeBuffer qkv;     // of layers whose heads are normed together
  HugeBuffer tail_x;  // residual stream of the rows whose logits are wanted
  ActivationBuffer hidden, attended, inner, head;
  HugeBuffer normed, scores;                  // of layers with experts, and rows by expert:
  ActivationBuffer gathered, gathered_inner;  // inputs and inner rows
  std::vector<WorkerScratch> workers;

  Status size(const ModelConfig& config, const ModelOptions& options, ActivationKinds kinds,
              std::uint32_t workers);

 private:
  Status size_experts(const ModelConfig& config, const ModelOptions& options,
                      ActivationKinds kinds);
};

struct Model::State {
  State(ModelConfig c, ModelOptions o, ThreadPool& p, PackedWeights w);

  void prepare(const Geometry& geometry, const StepRows& step);
  // StepRows::finished. If taps want states, it also fills `finishes`.
  std::span<const std::uint32_t> find_finished(const StepRows& step);
  // The part of one layer and KV head, for calibrated codecs; others have one for all.
  EncodedPart lane_part(EncodedPart part, std::uint32_t layer, std::uint32_t kv_head,
                        std::uint32_t position) const;
  // Adds the error of a page against the rows of f16 that it was encoded from.
  void look_at_seal(const EncodedPart& part, const std::byte* rows, const std::byte* page,
                    SealError::Side& side);
  RopeTable& rope_of(std::uint32_t layer) { return ropes[config.per_layer[layer].attn.rope]; }

  const ModelConfig config;
  const ModelOptions options;
  ThreadPool& pool;
  const PackedWeights weights;
  const LinearKernels& linear;
  const VectorKernels& vector;
  const AttendKernels& attend;
  const EncodedKernels& encoded;
  const MassKernels& mass;
  std::vector<RopeTable> ropes;

  // What becomes of each finished row; empty: they are the rows of logits.
  struct Finish {
    static constexpr std::uint32_t kNone = 0xffffffffu;
    std::uint32_t logit = kNone;  // which of logit_rows it is
    float* state = nullptr;       // where its state goes
  };
  std::vector<std::uint32_t> finished_rows;
  std::vector<Finish> finishes;

  Scratch scratch;
  AdapterScratch adapters;
  GroupSteps groups;
  std::vector<std::atomic<std::uint32_t>> next_task, next_seal;  // by layer
  std::uint64_t steps = 0;
  SealError seal_error;
  std::vector<float> sealed_rows, read_rows;  // of one page
  std::vector<MassScratch> mass_scratch;      // by thread
};

}  // namespace quire
