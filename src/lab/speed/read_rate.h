// lab/speed/read_rate.h - how fast this machine reads memory, for figures given as a share of it.
//
//   TRY(const double rate, read_rate(pool));   // bytes per second, all threads of the pool
#pragma once

#include "base/result.h"
#include "base/thread_pool.h"

namespace quire::lab {

// The best of a few passes over more memory than any cache holds; a fifth of a second.
Result<double> read_rate(ThreadPool& pool);

}  // namespace quire::lab
