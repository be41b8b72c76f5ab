// model/group_steps.h - what a step does in each layer group: where its rows go, which blocks it seals,
// and the tasks of its attention. Made once per step, read by all threads. Private to model/.
//
//   steps.prepare(geometry, step);
//   const GroupStep& at = steps.of_layer(geometry, layer);
#pragma once

#include <vector>

#include "kernels/sealed.h"
#include "kernels/streamed.h"
#include "model/choosing.h"
#include "model/huge_buffer.h"
#include "model/model.h"

namespace quire {

// Bytes that matrix products fetch for the attention after them: a part of the last cache.
inline constexpr std::size_t kFetchBytes = 8 << 20;

// Where a row's keys and values go in one layer group: to a block of all layers, or to scratch that
// serves one layer (or the layers that are sealed together) and is then used for the next.
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
  std::size_t row_block_bytes = 0;            // of a block that passes
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

  // Some of the blocks of the only sequence are cold (StepRows::cold). Its table is this one, with
  // entries that are set while the step runs. What rows read split by split is in `streamed_plan`.
  bool streamed = false;
  StreamedPlan streamed_plan;
  KvSequenceView sequence;
  std::vector<ArenaOffset> table;
};

struct GroupSteps {
  // `narrow`: activations are coarse enough for narrow attention.
  GroupSteps(const ModelConfig& config, Isa isa, bool narrow, std::uint32_t threads);

  void prepare(const Geometry& geometry, const StepRows& step);
  const GroupStep& operator[](std::uint32_t group) const { return groups[group]; }
  // A layer's attention: that of its group, or `dense` where no sequence chooses pages.
  const GroupStep& of_layer(const Geometry& geometry, std::uint32_t layer) const {
    const std::uint32_t group = geometry.places[layer].group;
    return chooses(group) && choosing.dense(layer) ? dense : groups[group];
  }
  bool chooses(std::uint32_t group) const { return choosing.active() && choosing.group() == group; }
  // The plan of a lossy group, with the type of a plan over rows.
  SealedStep sealed_step(const GroupStep& group, const AttendStep& as_rows) const;

  std::vector<GroupStep> groups;
  Choosing choosing;
  GroupStep dense;     // layers in which answers that choose pages do not
  GroupStep tail;      // the last layer's attention, for rows whose logits are wanted and no others
  HugeBuffer passing;  // rows of blocks that a step fills whole: of one layer, encoded and gone
  std::size_t partial_bytes = 0, scratch_bytes = 0;  // for attention; the latter by each thread

 private:
  AttendShape shape_of(const Geometry& geometry, const LayerGroup& group) const;
  void take_table(GroupStep& at) const;
  void plan_stream(const ColdBlocks& cold, GroupStep& at);
  void list_past(const Geometry& geometry, const LayerGroup& group, GroupStep& at, bool chosen);
  static std::size_t list_row_blocks(GroupStep& at);
  void place_rows(GroupStep& at);
  void prepare_sealed(const Geometry& geometry, const LayerGroup& group, GroupStep& at);
  // Plans a part of a group's step. Its view must be set.
  void plan_part(const GroupStep& whole, std::span<const RowBlocks> rows, GroupStep& part);
  void prepare_tail(const Geometry& geometry, const StepRows& step);

  const ModelConfig& config_;
  const EncodedKernels& encoded_;
  const bool narrow_;
  const std::uint32_t threads_;
  std::vector<KvSequenceView> tail_sequences_;
  std::vector<StreamedRow> streamed_rows_;
};

}  // namespace quire
