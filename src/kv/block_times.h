// kv/block_times.h - how long cached blocks live, lie idle and wait for their next reader, in
// seconds. The prefix store counts every block; metrics show it.
#pragma once

#include "base/histogram.h"

namespace quire {

struct BlockTimes {
  static constexpr double kBounds[] = {.001, .002, .005, .01, .02, .05, .1,  .2,  .5,   1,    2,
                                       5,    10,   20,   30,  60,  120, 300, 600, 1200, 1800, 3600};

  Histogram lifetime{kBounds};           // from stored to evicted
  Histogram idle_before_evict{kBounds};  // from the last use to evicted
  Histogram reuse_gap{kBounds};          // from one use to the hit after it
};

}  // namespace quire
