// model/block_passes.h - runs a step block by block, where neighbouring layers share pages.
//
// With `minicache` two layers are stored as one page. The page can be encoded only when the second
// layer has computed its rows, and rows behind a block must read the encoded block. So a step
// becomes as many passes as its longest sequence has blocks. CpuExecutor uses it for geometries
// with by_block().
//
//   BlockPasses passes(plan);
//   while (passes.next()) run(passes.plan(), logits of this pass), passes.place(logits, all);
#pragma once

#include <vector>

#include "model/executor.h"

namespace quire {

class BlockPasses {
 public:
  explicit BlockPasses(const StepPlan& whole);

  bool next();  // false: every row has been in a pass
  const StepPlan& plan() const { return part_; }
  // Puts the logits of this pass where the whole plan wants them.
  void place(const float* from, std::size_t vocabulary, float* to) const;

 private:
  const StepPlan& whole_;
  StepPlan part_;
  std::vector<std::uint32_t> done_;  // rows of each sequence that were in earlier passes
  std::vector<TokenId> tokens_;
  std::vector<std::uint32_t> positions_, adapters_, wanted_, wanted_from_;
  std::vector<std::vector<KvSequenceView>> sequences_;  // by group
  std::vector<KvView> views_;
};

}  // namespace quire
