#include "kv/select/sparse_prefill.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kv/retain/score.h"

namespace quire {

BlockScores antidiagonal_scores(const QueryRun& queries, std::span<const float> keys,
                                const AntidiagonalOptions& options) {
  const std::uint32_t n = queries.count, stride = options.stride, dim = queries.dim();
  CHECK(options.block % stride == 0 && queries.first == 0 && keys.size() == queries.rows.size());
  const std::uint32_t strides = (n + stride - 1) / stride, per_block = options.block / stride;
  BlockScores out;
  out.blocks = (n + options.block - 1) / options.block;
  out.shares.resize(std::size_t{out.blocks} * out.blocks);
  std::vector<float> row(strides);
  for (std::uint32_t i = 0; i < strides; ++i) {
    const std::span<float> seen = std::span(row).first(i + 1);
    for (std::uint32_t j = 0; j <= i; ++j) {
      float sum = 0;
      for (std::uint32_t r = 0; r < stride; ++r) {
        const std::uint32_t q = i * stride + stride - 1 - r, k = j * stride + r;
        if (q < n && k < n) sum += retain::dot(queries.row(q), retain::row_of(keys, k, dim));
      }
      seen[j] = queries.scale * sum / static_cast<float>(stride);
    }
    retain::softmax(seen);
    for (std::uint32_t j = 0; j <= i; ++j)
      out.shares[std::size_t{i / per_block} * out.blocks + j / per_block] += seen[j];
  }
  for (std::uint32_t b = 0; b < out.blocks; ++b) {
    const std::uint32_t rows = std::min(per_block, strides - b * per_block);
    for (std::uint32_t j = 0; j <= b; ++j)
      out.shares[std::size_t{b} * out.blocks + j] /= static_cast<float>(rows);
  }
  return out;
}

std::vector<std::uint32_t> choose_blocks(const BlockScores& scores, std::uint32_t query_block,
                                         double threshold) {
  const std::span<const float> shares = scores.row(query_block).first(query_block + 1);
  std::vector<std::uint32_t> order(shares.size());
  std::iota(order.begin(), order.end(), 0u);
  if (threshold >= 1) return order;
  const auto forced = [&](std::uint32_t b) { return b == 0 || b == query_block; };
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (forced(a) != forced(b)) return forced(a);
    return shares[a] != shares[b] ? shares[a] > shares[b] : a < b;
  });
  std::size_t count = 0;
  for (double held = 0; count < order.size(); ++count) {
    if (held >= threshold && !forced(order[count])) break;
    held += shares[order[count]];
  }
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

bool VerticalSlash::sees(std::uint32_t query, std::uint32_t key) const {
  return key <= query && (std::binary_search(columns.begin(), columns.end(), key) ||
                          std::binary_search(diagonals.begin(), diagonals.end(), query - key));
}

VerticalSlash vertical_slash(const QueryRun& last, std::span<const float> keys,
                             const VerticalSlashOptions& options) {
  const std::uint32_t n = last.first + last.count;
  std::vector<float> row(n), by_column(n), by_diagonal(n);
  for (std::uint32_t i = 0; i < last.count; ++i) {
    const std::span<float> seen = std::span(row).first(last.first + i + 1);
    attention(last.row(i), last.scale, keys, seen);
    for (std::uint32_t j = 0; j < seen.size(); ++j) {
      by_column[j] += seen[j];
      by_diagonal[last.first + i - j] += seen[j];
    }
  }
  const auto best = [&](std::span<const float> sums, std::uint32_t wanted) {
    std::vector<std::uint32_t> order(n);
    std::iota(order.begin(), order.end(), 0u);
    const auto forced = [&](std::uint32_t x) { return x < options.forced; };
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (forced(a) != forced(b)) return forced(a);
      return sums[a] != sums[b] ? sums[a] > sums[b] : a < b;
    });
    order.resize(std::min(wanted, n));
    std::sort(order.begin(), order.end());
    return order;
  };
  return {best(by_column, options.columns), best(by_diagonal, options.diagonals)};
}

}  // namespace quire
