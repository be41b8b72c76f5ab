// kernels/attend_scratch.h - the scratch memory of a thread that works on a tile of (row, query
// head) pairs.
//
// Shared by attend.cc, which sizes it, and the fast kernels, which use it. A pair is one query head
// of one row; pairs of a tile are numbered row by row.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

inline constexpr std::uint32_t kAttendTileHeads = 96;  // pairs in a tile, unless one row has more

struct AttendScratch {
  float *queries, *split_out, *row_out;  // [pairs][dim]
  float* weights;                        // [pairs][unit of 64, or of 128 encoded]: scores, then exp
  // Of the narrow arithmetic, two numbers to a word:
  std::uint32_t* query_words;     // [pairs][dim / 2], in the place of queries
  std::uint32_t* narrow_weights;  // [pairs][unit / 2]
  std::uint32_t* value_image;     // [unit / 2][dim]
  std::uint32_t* key_image;       // [dim / 2][unit]
  float* query_scale;             // [pairs]
  // Of latent attention:
  float* rotated_scale;  // [pairs], as query_scale
  float* turned;         // [dim][unit]: the latent rows of a unit as keys, in the row type
  float *split_max, *split_sum, *row_max, *row_sum, *unit_max, *unit_sum;  // [pairs]
  float *keep, *take;  // [pairs]: a and b of a merge
};

namespace {
constexpr std::size_t attend_padded(std::size_t pairs) { return (pairs + 15) / 16 * 16 + 16; }

constexpr std::size_t attend_scratch_floats(std::size_t pairs, std::size_t dim,
                                            std::size_t rotated = 0) {
  const std::size_t latent = rotated != 0 ? (pairs + 32) * rotated + 64 * dim : 0;
  return pairs * (3 * dim + 128 + 32) + 64 * dim + 10 * attend_padded(pairs) + latent;
}

inline AttendScratch attend_scratch(float* at, std::size_t pairs, std::size_t dim,
                                    std::size_t rotated = 0) {
  AttendScratch s;
  const auto take = [&](std::size_t floats) {
    float* here = at;
    at += floats;
    return here;
  };
  s.queries = take(pairs * (dim + rotated));
  s.query_words = reinterpret_cast<std::uint32_t*>(s.queries);
  s.split_out = take(pairs * dim);
  s.row_out = take(pairs * dim);
  s.weights = take(pairs * 128);
  s.narrow_weights = reinterpret_cast<std::uint32_t*>(take(pairs * 32));
  s.value_image = reinterpret_cast<std::uint32_t*>(take(32 * dim));
  s.key_image = reinterpret_cast<std::uint32_t*>(take(32 * (dim + rotated)));
  s.turned = take(rotated != 0 ? 64 * dim : 0);
  s.query_scale = take(attend_padded(pairs));
  s.rotated_scale = take(attend_padded(pairs));
  s.split_max = take(attend_padded(pairs));
  s.split_sum = take(attend_padded(pairs));
  s.row_max = take(attend_padded(pairs));
  s.row_sum = take(attend_padded(pairs));
  s.unit_max = take(attend_padded(pairs));
  s.unit_sum = take(attend_padded(pairs));
  s.keep = take(attend_padded(pairs));
  s.take = take(attend_padded(pairs));
  return s;
}
}  // namespace

}  // namespace quire
