// model/broken_rows.h - finds the sequences of rows whose keys or values are not finite. Used by
// the executors.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "format/codec.h"
#include "kernels/kv_view.h"

namespace quire {

// Whether all numbers stay finite in a row of the cache. No NaN does.
inline bool all_within(const float* x, std::uint32_t n, RowType rows) {
  const float largest = rows == RowType::f16    ? 65519.0f
                        : rows == RowType::bf16 ? 0x1.fep127f
                                                : 0x1.fffffep127f;
  std::uint32_t within = 0;
  for (std::uint32_t i = 0; i < n; ++i) within += std::fabs(x[i]) <= largest;
  return within == n;
}

// `rows` has a number for each row of a step; it is not 0 if the row is broken. Marks the sequences
// of broken rows in `sequences`, which stays empty if there are none.
template <class Flag>
void mark_broken(const KvView& view, std::span<const Flag> rows,
                 std::vector<std::uint8_t>& sequences) {
  if (std::ranges::all_of(rows, [](Flag f) { return f == 0; })) return;
  sequences.resize(view.sequence_count);
  for (std::uint32_t s = 0; s < view.sequence_count; ++s)
    for (const Flag f : rows.subspan(view.sequences[s].first_row, view.sequences[s].row_count))
      sequences[s] |= f != 0;
}

}  // namespace quire
