// model/state.h - what a loaded model holds, and the scratch its passes share. Private to model/.
#pragma once

#include <atomic>
#include <vector>

#include "kernels/sealed.h"
#include "kernels/select.h"
#include "kernels/vector.h"
#include "model/choosing.h"
#include "model/model.h"
#include "model/rope.h"
#include "model/weights.h"

namespace quire {

inline float* floats(const HugeBuffer& b) { return reinterpret_cast<float*>(b.data()); }

// Activations on their way into a matrix: encoded, plain, or both, as its weights want them.
struct Site {
  HugeBuffer encoded, plain;
  std::uint32_t inputs = 0, rows = 0;
  ActivationRows view, fine;  // in the mode asked for, and in int16; over the same bytes

  Status size(Activations mode, std::uint32_t row_count, std::uint32_t input_count, bool quantized,
              bool half_sums, bool with_plain);
};

// Up to this many rows each thread prepares all activations for itself: cheaper than meeting at a
// barrier.
inline constexpr std::uint32_t kFewRows = 4;

// What products fetch for the attention after them: a part of the last cache, in which it waits.
inline constexpr std::size_t kFetchBytes = 8 << 20;

// What one thread owns.
struct LaneScratch {
  Site hidden, attended;   // inputs of few rows
  std::vector<float> x;    // residual stream of few rows
  std::vector<float> row;  // one row, normalized
  HugeBuffer unit;  // outputs of one unit (a head, or 32 gates and 32 ups) for all rows of a step
  HugeBuffer attend;
  std::vector<float> plain_queries;  // of a tap, before rotation
  SelectScratch select;
};

// Where a row's keys and values go in one layer group: in a block of all layers, or in one that
// serves a layer (or those that are sealed together) and is then used for the next.
struct RowPlace {
  std::byte* block;
  std::uint32_t slot;
  bool passing;
};

struct GroupStep {
  AttendPlan plan;
  AttendShape shape;  // of the group's first layer
  KvView view;
  std::vector<RowPlace> places;               // groups that rows are written to
  std::vector<const std::byte*> past_blocks;  // the first that are read, as far as a cache has room

  // Lossy groups. Blocks that this step fills are encoded, from rows of group `rows`.
  struct Seal {
    const std::byte* rows;
    std::byte* block;
    bool passing;
    std::uint32_t position;  // of the block's first token
  };
  bool sealed = false;
  std::uint32_t rows = 0;
  SealedShape sealed_shape;
  SealedPlan sealed_plan;
  EncodedPart keys, values;
  std::vector<RowBlocks> row_blocks;  // by sequence
  std::vector<Seal> seals;
};

struct Model::State {
  State(ModelConfig c, ModelOptions o, ThreadPool& p, Weights w);

  Status size_scratch();  // before the first step
  // Narrow is as good as activations of 8 bits are; with finer ones, or none, f32.
  AttendArithmetic arithmetic(RowType rows) const {
    return quantized && options.activations == Activations::int8 && rows != RowType::f32
               ? AttendArithmetic::narrow
               : AttendArithmetic::f32;
  }
  void prepare(const Geometry& geometry, const StepRows& step);
  // Plans a part of a group's step, whose view is set.
  void plan_part(const GroupStep& whole, std::span<const RowBlocks> rows, GroupStep& part);
  void prepare_dense(const GroupStep& group);
  void prepare_tail(const Geometry& geometry, const StepRows& step);
  // A layer's attention: of its group, or of those who read everything in it.
  const GroupStep& step_of(const Geometry& geometry, std::uint32_t layer) const {
    const std::uint32_t group = geometry.places[layer].group;
    return choosing.active() && choosing.group() == group && choosing.dense(layer) ? dense
                                                                                   : groups[group];
  }
  void list_past(const Geometry& geometry, const LayerGroup& group, GroupStep& at);
  void place_rows(const Geometry& geometry, const LayerGroup& group, GroupStep& at);
  void prepare_sealed(const Geometry& geometry, const LayerGroup& group, GroupStep& at);
  // Adds what was lost between rows of f16 and the page made of them.
  void look_at_seal(const EncodedPart& part, const std::byte* rows, const std::byte* page,
                    SealError::Side& side);
  // The part of one layer and KV head, for calibrated codecs; others have one for all.
  EncodedPart lane_part(EncodedPart part, std::uint32_t layer, std::uint32_t kv_head,
                        std::uint32_t position) const;
  SealedStep sealed_step(const GroupStep& group) const;  // of layer 0; without rows and partials

  const ModelConfig config;
  const ModelOptions options;
  ThreadPool& pool;
  const Weights weights;
  const LinearKernels& linear;
  const VectorKernels& vector;
  const AttendKernels& attend;
  const EncodedKernels& encoded;
  const MassKernels& mass;
  bool quantized = false, half_sums = false, plain = false;  // which kinds of weights there are
  std::vector<RopeTable> ropes;

  // Shared by the threads of a step; [rows][...].
  HugeBuffer x, y, queries, attended_rows, partials;
  HugeBuffer tail_x;  // residual stream of the rows whose logits are wanted
  Site hidden, attended, inner, head;
  std::vector<LaneScratch> lanes;
  std::vector<GroupStep> groups;
  Choosing choosing;
  GroupStep dense;  // layers in which answers that choose pages do not
  // The last layer's attention, for rows whose logits are wanted and no others.
  GroupStep tail;
  std::vector<KvSequenceView> tail_sequences;
  HugeBuffer passing;  // rows of blocks that a step fills whole: of one layer, encoded and gone
  std::vector<std::atomic<std::uint32_t>> next_task, next_seal;  // by layer
  std::uint64_t steps = 0;
  SealError seal_error;
  std::vector<MassScratch> mass_scratch;      // by thread
  std::vector<float> sealed_rows, read_rows;  // of one page
};

}  // namespace quire
