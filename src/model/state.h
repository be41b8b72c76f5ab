// model/state.h - what a model loaded on a CPU holds: weights, kernels, scratch, and the step that its
// passes share. Private to model/.
#pragma once

#include <atomic>
#include <vector>

#include "kernels/vector.h"
#include "model/group_steps.h"
#include "model/rope.h"
#include "model/scratch.h"

namespace quire {

struct Model::State {
  State(ModelConfig c, ModelOptions o, ThreadPool& p, PackedWeights w);

  void prepare(const Geometry& geometry, const StepRows& step);
  // The part of one layer and KV head, for calibrated codecs; others have one for all.
  EncodedPart lane_part(EncodedPart part, std::uint32_t layer, std::uint32_t kv_head,
                        std::uint32_t position) const;
  // Adds what was lost between rows of f16 and the page made of them.
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

  Scratch scratch;
  GroupSteps groups;
  std::vector<std::atomic<std::uint32_t>> next_task, next_seal;  // by layer
  std::uint64_t steps = 0;
  SealError seal_error;
  std::vector<float> sealed_rows, read_rows;  // of one page
  std::vector<MassScratch> mass_scratch;      // by thread
};

}  // namespace quire
