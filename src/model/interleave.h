// model/interleave.h - rows of wq and wk that are stored for pairs (2i, 2i + 1) of a head are put
// back for pairs (i, i + d/2). Both loaders use it.
#pragma once

#include <cstdint>

namespace quire {

inline std::uint32_t half_split_row(std::uint32_t o, std::uint32_t head_dim) {
  const std::uint32_t within = o % head_dim, half = head_dim / 2;
  return o - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

}  // namespace quire
