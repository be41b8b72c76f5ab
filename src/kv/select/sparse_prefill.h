// kv/select/sparse_prefill.h - which blocks of a long prompt's attention are worth computing.
//
// Two published ways to guess them, per query head. XAttention (arXiv 2503.16428) multiplies each
// stride of queries, reversed, with each stride of keys: one product sums an antidiagonal, and
// every row and column of a block lies on some antidiagonal. Vertical-slash (MInference, arXiv
// 2407.02490) looks at the attention of the last queries: columns and diagonals that got most of it
// are computed for all. The cache stays whole; what is computed from it is an approximation, so the
// policy belongs into the key of what follows.
//
//   BlockScores scores = antidiagonal_scores({q, n, 0, scale}, k, {.block = 128, .stride = 16});
//   std::vector<std::uint32_t> blocks = choose_blocks(scores, row, 0.9);      // ascending
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/retain/observe.h"

namespace quire {

struct AntidiagonalOptions {
  std::uint32_t block = 128, stride = 16;  // block is a multiple of stride
};

struct BlockScores {
  std::uint32_t blocks = 0;   // of queries, and of keys
  std::vector<float> shares;  // [query block][key block], of the query block's attention; 0 ahead

  std::span<const float> row(std::uint32_t i) const {
    return std::span(shares).subspan(std::size_t{i} * blocks, blocks);
  }
};

// Queries and keys of one whole prompt; a last stride that is not full is padded with zeros.
BlockScores antidiagonal_scores(const QueryRun& queries, std::span<const float> keys,
                                const AntidiagonalOptions& options);

// The fewest key blocks that hold `threshold` of a query block's share, and always the first and
// its own. A threshold of 1 is every block up to its own.
std::vector<std::uint32_t> choose_blocks(const BlockScores& scores, std::uint32_t query_block,
                                         double threshold);

struct VerticalSlash {
  std::vector<std::uint32_t> columns;    // ascending: keys that every query sees
  std::vector<std::uint32_t> diagonals;  // ascending: distances back at which a query sees

  bool sees(std::uint32_t query, std::uint32_t key) const;
};

struct VerticalSlashOptions {
  std::uint32_t columns = 1000, diagonals = 6096;  // how many of each
  std::uint32_t forced = 30;                       // first columns and nearest diagonals
};

// From the last queries of a prompt. Ties go to the lower column, the nearer diagonal.
VerticalSlash vertical_slash(const QueryRun& last, std::span<const float> keys,
                             const VerticalSlashOptions& options);

}  // namespace quire
