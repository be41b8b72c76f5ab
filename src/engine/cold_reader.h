// engine/cold_reader.h - brings the cold blocks of one sequence into the arena, segment by segment, while
// its steps run (model/cold_blocks.h).
//
// Each segment has a slot of a ring. As the order in which a step wants them is known, free slots are
// filled ahead: with the next windows of the layer, the next layer, and, when a step is over, with the
// first layer of the next one. Where one segment holds several layers, and all cold blocks fit the ring,
// it is read once for all of these layers.
//
//   ColdReader reader(cache, link, clock, geometry, shape, "tenant", sources);
//   reader.set_blocks(cold);                     // between steps: as many as the sequence has
//   if (!reader.lend(sequence)) ...              // no room for the ring now
//   plan.cold = &reader;                         // the executor calls bring() and release()
//   reader.lost();                               // after a step: the block that could not be had
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/spill_shape.h"
#include "kv/cache.h"
#include "kv/tier/tier_link.h"
#include "model/cold_blocks.h"

namespace quire {

// Where a block lies, and what it must be.
struct ColdSource {
  std::shared_ptr<const RecordIdentity> of;
  TierPlace place = kNowhere;
};

struct ColdReads {
  std::uint64_t bytes = 0, hidden = 0;  // read; those that were there before they were waited for
  std::uint64_t stalls = 0;             // times that nothing came for too long
};

class ColdReader final : public ColdBlocks {
 public:
  // `sources` may grow; entries of cold blocks stay as they are.
  ColdReader(KvCache& cache, TierLink& link, const Clock& clock, const Geometry& geometry,
             const SpillShape& shape, std::string tenant, const std::deque<ColdSource>& sources);
  ~ColdReader() override;  // what is under way ends by itself
  ColdReader(const ColdReader&) = delete;

  void set_blocks(std::uint32_t blocks);
  bool lend(const Sequence& s);
  void let_go();  // of the ring: the sequence has left memory
  std::uint64_t ring_bytes() const;
  const ColdReads& reads() const { return reads_; }
  // Why the last step could not be completed, and forgets it.
  struct Lost {
    std::uint32_t block;
    bool stalled;  // nothing came for too long
  };
  std::optional<Lost> take_lost() { return std::exchange(lost_, {}); }

  std::uint32_t group() const override { return shape_.group; }
  std::uint32_t blocks() const override { return blocks_; }
  std::uint32_t window() const override { return shape_.window_blocks; }
  void begin(std::uint32_t layers) override;
  Came bring(std::uint32_t layer, std::uint32_t first, std::uint32_t end,
             ArenaOffset* table) override;
  void release() override;

 private:
  struct Ring;  // outlives the reader while a tier writes into it
  struct Item {
    std::uint32_t layer, block, slot;
  };

  void restart(std::uint32_t layer, std::uint32_t block);
  void ask();
  bool next_is_kept() const;
  bool wants(std::uint32_t layer, std::uint32_t block) const;
  bool kept_for(std::uint32_t layer) const;
  ArenaOffset entry(const Item& item) const;
  Came stall(std::uint32_t block);

  KvCache& cache_;
  TierLink& link_;
  const Clock& clock_;
  const SpillShape shape_;
  const RingSlots slots_;
  const std::string tenant_;
  const std::deque<ColdSource>& sources_;
  std::shared_ptr<Ring> ring_;
  std::deque<Item> queue_;  // in the order in which they are wanted
  std::uint32_t blocks_ = 0, layers_ = 0;
  std::uint32_t next_layer_ = 0,
                next_block_ = 0;  // to ask for; layers_: the next step's first layer
  std::uint32_t brought_ = 0;     // first items of the queue, in use
  bool looked_ = false;           // at the window that is waited for
  std::uint64_t ended_ = 0;       // reads that had ended when it last looked
  Nanoseconds progress_ = 0;
  ColdReads reads_;
  std::optional<Lost> lost_;
};

}  // namespace quire
