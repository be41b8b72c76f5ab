// kv/retain/observe.h - the signals of retention methods, computed without a matrix of attention,
// in plain C++.
//
// These functions define the signals that kv/retain/retain.h names (Signal), for one query head
// each; kernels/mass.h computes them faster. Every softmax is over all keys that a query sees,
// sinks included. Queries and keys are rotated to their positions, except in QueryMoments, which
// collects queries before rotation and rotates their mean and covariance later.
//
//   add_window_mass({queries, 64, n - 64, scale}, keys, mass);       // SnapKV; with 1 query TOVA
//   log_sum_exp(queries, keys, lse);                                 // kept while prefilling, then
//   add_total_mass(queries, lse, keys, mass);                        // a second pass: H2O
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// Queries of consecutive tokens; query i stands at slot first + i and sees slots [0, first + i].
struct QueryRun {
  std::span<const float> rows;  // [count][dim]
  std::uint32_t count = 0, first = 0;
  float scale = 1;  // of q.k, usually 1 / sqrt(dim)

  std::uint32_t dim() const { return static_cast<std::uint32_t>(rows.size() / count); }
  std::span<const float> row(std::uint32_t i) const { return rows.subspan(i * dim(), dim()); }
};

// out[slot] = softmax of scale * q.k over the first out.size() keys.
void attention(std::span<const float> query, float scale, std::span<const float> keys,
               std::span<float> out);

// mass[slot] += mean over the queries of their attention. [slots]
void add_window_mass(const QueryRun& queries, std::span<const float> keys, std::span<float> mass);

// lse[i] = log of the sum of exp(scale * q_i.k) over the keys that query i sees.
void log_sum_exp(const QueryRun& queries, std::span<const float> keys, std::span<float> lse);

// mass[slot] += sum over the queries of exp(scale * q_i.k - lse_i). Runs may come in chunks, each
// against all keys up to its end.
void add_total_mass(const QueryRun& queries, std::span<const float> lse,
                    std::span<const float> keys, std::span<float> mass);

// peak[slot] = max(peak[slot], attention of any query), for queries that read a chunk of the
// context again: each sees the context's sinks, the chunk [begin, end), and what was repeated up to
// itself (`own`, in which the first query has the slot queries.first).
struct RepeatContext {
  std::span<const float> keys;  // of the context
  std::uint32_t sinks, begin, end;
};
void raise_peak_mass(const QueryRun& queries, const RepeatContext& context,
                     std::span<const float> own, std::span<float> peak);

// counts[slot] += 1 where attention[slot] is below 1 / slots.
void count_below(std::span<const float> attention, std::span<float> counts);

// Mean and covariance of a query head before rotation; sums, so that chunks and threads add up.
class QueryMoments {
 public:
  explicit QueryMoments(std::uint32_t dim);

  void add(std::span<const float> query);
  void add(const QueryMoments& other);
  // Queries that were added up elsewhere: their number, sum and sum of products.
  void add(std::uint64_t count, std::span<const double> sum, std::span<const double> products);
  std::uint64_t count() const { return count_; }

  // Mean and covariance as seen from positions ahead: both are rotated by the mean rotation over
  // those positions, whose cosines and sines are given by pair (i, i + dim/2). covariance may be
  // empty.
  void turned(std::span<const double> cosines, std::span<const double> sines, std::span<float> mean,
              std::span<float> covariance) const;

 private:
  std::uint32_t dim_;
  std::uint64_t count_ = 0;
  std::vector<double> sum_, products_;  // [dim], [dim][dim]
};

// Means of cos and sin of p * frequency over positions [first, first + count), by pair.
void mean_rotation(std::span<const double> frequencies, std::uint32_t first, std::uint32_t count,
                   std::span<double> cosines, std::span<double> sines);

}  // namespace quire
