// model/cold_blocks.h - blocks of a sequence that are not in the arena while a step runs.
//
// They are the first blocks of one layer group, sealed and named, and lie in a tier. The executor asks
// for them layer by layer, from the first block to the last, a window of whole splits of attention at
// a time. Attention sums splits left to right (kernels/attend.h), so it need not see two windows at once.
// Whoever brings them knows this order and reads ahead.
//
//   cold.begin(layers);                                      // of the group, that will be read
//   for (layer of the group) for (window of the layer) {
//     while (cold.bring(layer, first, end, table) == ColdBlocks::Came::later) ...     // a nap
//                                                          // table[first, end) is valid now
//     cold.release();                                        // the window has been read
//   }
//
// The thread that calls is the one that completes the step.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_view.h"

namespace quire {

class ColdBlocks {
 public:
  virtual ~ColdBlocks() = default;
  virtual std::uint32_t group() const = 0;   // of the geometry
  virtual std::uint32_t blocks() const = 0;  // that are cold: [0, blocks)
  virtual std::uint32_t window() const = 0;  // blocks that are brought at once: whole splits

  virtual void begin(std::uint32_t layers) = 0;
  // `layer` counts within the group. The entries of `table` are for this layer alone. later: ask
  // again. never: a block cannot be had, and the step's results are void.
  enum class Came : std::uint8_t { now, later, never };
  virtual Came bring(std::uint32_t layer, std::uint32_t first, std::uint32_t end,
                     ArenaOffset* table) = 0;
  virtual void release() = 0;
};

}  // namespace quire
