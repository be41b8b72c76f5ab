// sim/toy_step.h - one step of the toy executor: rows are stored, blocks are encoded, slots are read.
//
//   ToyStep step(config, clock, pages);
//   std::span<const std::uint64_t> states = step.run(plan);      // of every row, after the last layer
//   step.dropped();                                              // by sequence: its gate stayed closed
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "base/clock.h"
#include "kernels/attend.h"
#include "kernels/select.h"
#include "model/choosing.h"
#include "model/executor.h"
#include "model/state.h"
#include "sim/page_numbers.h"

namespace quire {

class ToyStep {
 public:
  ToyStep(const ModelConfig& config, ManualClock& clock, PageNumbers& pages);

  std::span<const std::uint64_t> run(const StepPlan& plan);
  std::span<const std::uint8_t> dropped() const { return dropped_; }
  void on_nap(std::function<void()> nap) {
    nap_ = std::move(nap);
  }  // while it waits for cold blocks

 private:
  // A layer and the groups that it reads from and writes to.
  struct Layer {
    std::uint32_t number;
    LayerPlace place, rows;
    const LayerGroup *group, *row_group;
    KvView view, row_view;  // view: with the lanes that were chosen
  };

  void open_gates(std::uint32_t layer);
  void bring(const Layer& at);
  std::uint32_t attended_layers(const StepPlan& plan) const;
  void store_rows(const Layer& at);
  void fill_taps(const Layer& at);
  void keep_states();
  void seal(const Layer& at);
  void choose(const Layer& at);
  void attend(const Layer& at);
  void attend_head(const Layer& at, std::uint32_t sequence, std::uint32_t head);
  // sums[i]: of the digests of slots [from, from + i). `page` finds the page that holds a block.
  template <class Page>
  void sum_slots(const LayerGroup& group, Page page, std::uint32_t from, std::uint32_t to,
                 std::vector<std::uint64_t>& sums);
  std::byte* row_block(const Layer& at, std::uint32_t sequence, std::uint32_t block);
  void make_queries(const Layer& at);
  bool is_dropped(std::uint32_t sequence) const {
    return !dropped_.empty() && dropped_[sequence] != 0;
  }

  const ModelConfig& config_;
  ManualClock& clock_;
  PageNumbers& pages_;
  const AttendKernels& store_;
  const EncodedKernels& encoded_;
  const MassKernels& mass_;
  Choosing choosing_;
  SelectScratch select_;

  const StepPlan* plan_ = nullptr;
  const Geometry* geometry_ = nullptr;
  std::vector<std::uint64_t> states_, attended_;  // by row
  std::vector<std::uint8_t> dropped_;
  std::vector<float> queries_;  // [row][query_heads * head_dim], of the layer at hand
  std::vector<RowPlace> places_;
  // Rows of blocks that the step fills and the cache has no place for, of the layer at hand.
  std::map<std::pair<const ArenaOffset*, std::uint32_t>, std::vector<std::byte>> passing_;
  std::vector<std::uint64_t> sealed_sums_, row_sums_;
  // Cold blocks, as far as the layer at hand reads them.
  std::function<void()> nap_;
  std::vector<ArenaOffset> table_;
  std::vector<std::vector<std::byte>> cold_;
};

}  // namespace quire
