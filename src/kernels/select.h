// kernels/select.h - chooses which pages of a lane one query, or one block of queries, reads. The
// choice is an estimate from fewer products than attention would need. Nothing is freed; attention
// reads the chosen pages as it reads a lane (kv_run.h). Used by the model's pass.
//
// Quest (arXiv 2406.10774), for a query: the least and the greatest value of every channel of a
// page's keys bound any product with them. Pages with the highest bounds are read.
//
//   PageBounds bounds(lanes, 64);
//   bounds.add(lane, keys, 32);                                   // a whole page, [dim][P]
//   kernels.bound_scores(bounds.of(lane), pages, 64, queries, n, scores);
//   choose_pages(scores, 16, pages);
//
// XAttention (arXiv 2503.16428), for a block of queries: the product of a stride of queries,
// reversed, and a stride of keys is the sum of an antidiagonal, and every row and column of a block
// crosses one. The pages that hold the wanted share of the softmax over these sums are read.
// Vertical-slash (MInference, arXiv 2407.02490): the columns and diagonals to which the block's
// last queries give most attention are read.
//
//   add_antidiagonal_shares(kernels, keys, queries, scratch, shares);        // one query head
//   choose_blocks(shares, 0.9, pages);
//
// Query heads that share keys decide together: bounds are maximized, shares averaged. Keys are
// decoded and rotated, as attention will read them; they may be in a codec's basis if the queries
// are too. Every instruction set gives the bits of the scalar one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/cpu.h"
#include "format/format.h"
#include "kernels/geometry.h"
#include "kernels/mass.h"

namespace quire {

inline constexpr std::uint32_t kSelectStride = 16;  // of antidiagonals
inline constexpr std::uint32_t kSlashQueries = 4;   // last ones of a block that are looked at
inline constexpr std::uint32_t kSlashForced = 16;   // first columns and nearest diagonals

struct SelectKernels {
  // Keys of a page of rows, as floats in their order.
  void (*widen)(RowType type, const std::byte* page, std::uint32_t count, float* out);
  // scores[p] = max over the queries of: sum over channels of max(q * low, q * high), as 16 sums
  // (channel mod 16) and the tree of kernels/vector.h. Queries are [n][dim].
  void (*bound_scores)(const float* bounds, std::uint32_t pages, std::uint32_t dim,
                       const float* queries, std::uint32_t n, float* scores);
  // dots[i * stride + j] = the antidiagonal of reversed queries i ([dim][16]) and the 16 keys from
  // slot 16 j on: fma over the channels in order, then the tree over the 16.
  void (*antidiagonals)(const float* keys, std::uint32_t pages, std::uint32_t tokens,
                        std::uint32_t dim, const float* reversed, std::uint32_t n, float* dots,
                        std::size_t stride);
  // dots[i * stride + slot] = fma over the channels in order. Queries are [n][dim].
  void (*products)(const float* keys, std::uint32_t pages, std::uint32_t tokens, std::uint32_t dim,
                   const float* queries, std::uint32_t n, float* dots, std::size_t stride);
};
const SelectKernels& select_kernels(Isa isa);

extern const SelectKernels kSelectScalar, kSelectAvx2, kSelectAvx512;  // by select_kernels

// The bounds of whole pages, by lane; dim is a multiple of 16. A forked sequence copies them.
class PageBounds {
 public:
  PageBounds(std::uint32_t lanes, std::uint32_t dim) : dim_(dim), lanes_(lanes) {}

  std::uint32_t dim() const { return dim_; }
  std::uint32_t pages(std::uint32_t lane) const {
    return static_cast<std::uint32_t>(lanes_[lane].size() / (2 * dim_));
  }
  const float* of(std::uint32_t lane) const {
    return lanes_[lane].data();
  }  // [page][low, high][dim]
  // Adds the lane's next page. Several threads may add to different lanes.
  void add(std::uint32_t lane, const float* keys, std::uint32_t tokens);
  void cut(std::uint32_t pages);  // forgets the pages after the first `pages`
  std::uint64_t bytes() const;

 private:
  std::uint32_t dim_;
  std::vector<std::vector<float>> lanes_;
};

// The `count` best of the pages, at least three (or all), ascending. Ties go to the lower page.
void choose_pages(std::span<const float> scores, std::uint32_t count,
                  std::vector<std::uint32_t>& pages);

// A lane up to a block of queries: pages [page][dim][P], the last being the queries' own, with zeros
// behind `end`.
struct SelectKeys {
  const float* keys;
  std::uint32_t pages, tokens_per_page, dim, end;
};
// One query head of the block: the tokens [first, first + count), `stride` floats apart.
struct SelectQueries {
  const float* rows;
  std::size_t stride;
  std::uint32_t first, count;
  float scale;
};
// Scratch of one thread; grows to what a call needs.
struct SelectScratch {
  std::vector<float> keys, queries, scores, weights, row, columns, diagonals, shares, turned;
  std::vector<std::uint32_t> order, pages;
};

// Adds to shares[page] the page's share of each stride's attention.
void add_antidiagonal_shares(const SelectKernels& kernels, const SelectKeys& keys,
                             const SelectQueries& queries, SelectScratch& scratch,
                             std::span<float> shares);
// The fewest pages before the last that, with it, hold `threshold` of all shares; always the first.
void choose_blocks(std::span<const float> shares, double threshold, SelectScratch& scratch,
                   std::vector<std::uint32_t>& pages);

// Adds to columns[slot] and diagonals[distance] (both `end` long) what the last queries give them.
void add_slashes(const SelectKernels& kernels, const MassKernels& mass, const SelectKeys& keys,
                 const SelectQueries& queries, SelectScratch& scratch, std::span<float> columns,
                 std::span<float> diagonals);
// The pages before the last that hold one of the best columns, or that one of the best diagonals
// crosses for queries of the block [first, end). The first columns and the nearest diagonals are
// among them; ties go to the lower column, the nearer diagonal.
void choose_slashes(std::span<const float> columns, std::span<const float> diagonals,
                    const SparsePrefill& how, std::uint32_t first, std::uint32_t tokens_per_page,
                    SelectScratch& scratch, std::vector<std::uint32_t>& pages);

}  // namespace quire
