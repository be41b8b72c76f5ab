// model/choosing.h - the part of a step that chooses pages: views whose lanes are filled layer by
// layer. Private to model/.
//
// prepare() replaces the views of sequences that read only some pages by views with empty lanes. In
// each layer run() fills the lanes, when the layer's queries, rows and sealed pages are there. Then
// all sequences attend.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attend.h"
#include "kernels/encoded.h"
#include "model/model.h"

namespace quire {

struct RowPlace;

// One layer of a step, as far as choosing looks at it.
struct ChoosingLayer {
  std::uint32_t layer, index;  // of the model; within the group
  const RowPlace* places;      // of the step's rows
  std::uint32_t row_index;     // of the layer within the group that has the rows
  std::size_t row_page_bytes;
  const float* queries;  // [rows][query_heads * head_dim]
};

class Choosing {
 public:
  Choosing(const ModelConfig& config, const SelectKernels& select, const MassKernels& mass)
      : config_(config), select_(select), mass_(mass) {}

  // The group's view, with lanes for the sequences that choose. False: none does, and the view is
  // unchanged.
  bool prepare(const Geometry& geometry, std::uint32_t group,
               std::span<const PageReads* const> reads, KvView& view);
  void clear() { entries_.clear(); }
  bool active() const { return !entries_.empty(); }
  std::uint32_t group() const { return group_; }
  // Whether a sequence reads everything in this layer although it chooses in others, and the
  // group's view for such layers.
  bool dense(std::uint32_t layer) const { return answers_ && layer < kDenseLayers; }
  KvView dense_view(KvView view) const;

  // Runs one task of a layer. Tasks may run on any thread, in any order.
  std::uint32_t tasks() const { return static_cast<std::uint32_t>(families_.size()) * kv_heads_; }
  void run(const ChoosingLayer& layer, std::uint32_t task, SelectScratch& scratch);

 private:
  struct Entry {
    std::uint32_t sequence, own;  // the page its rows are in
    const PageReads* reads;
    std::size_t lanes, pages;  // where its own begin
    std::uint32_t pages_max;
  };
  struct Family {  // parts of one sequence, in order
    std::uint32_t first, count;
  };

  void choose_answer(const ChoosingLayer& at, const Entry& e, std::uint32_t head,
                     SelectScratch& scratch);
  void choose_block(const ChoosingLayer& at, const Entry& e, std::uint32_t head,
                    SelectScratch& scratch);
  void take(const ChoosingLayer& at, const Entry& e, std::uint32_t head,
            std::span<const std::uint32_t> chosen);
  void count(const Entry& e, std::uint64_t read) const;
  // Keys of a sealed page, [dim][P], in the codec's basis.
  void read_page(std::uint32_t lane, ArenaOffset block, float* to) const;
  void read_own(const ChoosingLayer& at, const Entry& e, std::uint32_t head, float* to,
                SelectScratch& scratch) const;
  const float* turned(const float* rows, std::size_t stride, std::uint32_t count,
                      SelectScratch& scratch) const;

  const ModelConfig& config_;
  const SelectKernels& select_;
  const MassKernels& mass_;
  const Geometry* geometry_ = nullptr;
  const LayerGroup* of_ = nullptr;
  std::uint32_t group_ = 0, kv_heads_ = 0, dim_ = 0, tokens_ = 0;
  std::size_t page_bytes_ = 0;
  std::byte* arena_ = nullptr;
  EncodedPart keys_{};
  bool answers_ = false;
  std::vector<Entry> entries_;
  std::vector<Family> families_;
  std::vector<KvSequenceView> views_, plain_;
  std::vector<KvLane> lanes_;
  std::vector<ArenaOffset> pages_;
};

}  // namespace quire
