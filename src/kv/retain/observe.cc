#include "kv/retain/observe.h"

#include <algorithm>
#include <cmath>

#include "kernels/ref/math.h"
#include "kv/retain/score.h"

namespace quire {
namespace {
void logits(std::span<const float> query, float scale, std::span<const float> keys,
            std::span<float> out) {
  CHECK(keys.size() >= out.size() * query.size());
  for (std::size_t s = 0; s < out.size(); ++s)
    out[s] = scale * retain::dot(query, retain::row_of(keys, s, query.size()));
}
}  // namespace

void attention(std::span<const float> query, float scale, std::span<const float> keys,
               std::span<float> out) {
  logits(query, scale, keys, out);
  retain::softmax(out);
}

void add_window_mass(const QueryRun& queries, std::span<const float> keys, std::span<float> mass) {
  std::vector<float> row(mass.size());
  for (std::uint32_t i = 0; i < queries.count; ++i) {
    const std::span<float> seen = std::span(row).first(queries.first + i + 1);
    attention(queries.row(i), queries.scale, keys, seen);
    for (std::size_t s = 0; s < seen.size(); ++s)
      mass[s] += seen[s] / static_cast<float>(queries.count);
  }
}

void log_sum_exp(const QueryRun& queries, std::span<const float> keys, std::span<float> lse) {
  CHECK(lse.size() == queries.count);
  std::vector<float> row(queries.first + queries.count);
  for (std::uint32_t i = 0; i < queries.count; ++i) {
    const std::span<float> seen = std::span(row).first(queries.first + i + 1);
    logits(queries.row(i), queries.scale, keys, seen);
    const float most = *std::max_element(seen.begin(), seen.end());
    double sum = 0;
    for (float x : seen) sum += ref::exp(x - most);
    lse[i] = most + static_cast<float>(std::log(sum));
  }
}

void add_total_mass(const QueryRun& queries, std::span<const float> lse,
                    std::span<const float> keys, std::span<float> mass) {
  CHECK(lse.size() == queries.count && mass.size() >= queries.first + queries.count);
  for (std::uint32_t i = 0; i < queries.count; ++i)
    for (std::uint32_t s = 0; s <= queries.first + i; ++s)
      mass[s] += ref::exp(queries.scale *
                              retain::dot(queries.row(i), retain::row_of(keys, s, queries.dim())) -
                          lse[i]);
}

void raise_peak_mass(const QueryRun& queries, const RepeatContext& context,
                     std::span<const float> own, std::span<float> peak) {
  const std::size_t dim = queries.dim();
  const std::uint32_t sinks = std::min(context.sinks, context.begin);
  const std::uint32_t chunk = context.end - context.begin;
  std::vector<float> row(sinks + chunk + queries.first + queries.count);
  for (std::uint32_t i = 0; i < queries.count; ++i) {
    const std::span<float> seen = std::span(row).first(sinks + chunk + queries.first + i + 1);
    logits(queries.row(i), queries.scale, context.keys, seen.first(sinks));
    logits(queries.row(i), queries.scale, context.keys.subspan(context.begin * dim),
           seen.subspan(sinks, chunk));
    logits(queries.row(i), queries.scale, own, seen.subspan(sinks + chunk));
    retain::softmax(seen);
    for (std::uint32_t s = 0; s < chunk; ++s)
      peak[context.begin + s] = std::max(peak[context.begin + s], seen[sinks + s]);
  }
}

void count_below(std::span<const float> attention, std::span<float> counts) {
  const float mean = 1.0f / static_cast<float>(attention.size());
  for (std::size_t s = 0; s < attention.size(); ++s) counts[s] += attention[s] < mean ? 1.0f : 0.0f;
}

QueryMoments::QueryMoments(std::uint32_t dim)
    : dim_(dim), sum_(dim), products_(std::size_t{dim} * dim) {}

void QueryMoments::add(std::span<const float> query) {
  CHECK(query.size() == dim_);
  ++count_;
  for (std::uint32_t i = 0; i < dim_; ++i) {
    const double x = query[i];
    sum_[i] += x;
    for (std::uint32_t j = 0; j < dim_; ++j) products_[std::size_t{i} * dim_ + j] += x * query[j];
  }
}

void QueryMoments::add(const QueryMoments& other) {
  add(other.count_, other.sum_, other.products_);
}

void QueryMoments::add(std::uint64_t count, std::span<const double> sum,
                       std::span<const double> products) {
  CHECK(sum.size() == sum_.size() && products.size() == products_.size());
  count_ += count;
  for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += sum[i];
  for (std::size_t i = 0; i < products_.size(); ++i) products_[i] += products[i];
}

void QueryMoments::turned(std::span<const double> cosines, std::span<const double> sines,
                          std::span<float> mean, std::span<float> covariance) const {
  const std::uint32_t half = dim_ / 2;
  CHECK(count_ > 0 && cosines.size() == half && sines.size() == half && mean.size() == dim_);
  const double n = static_cast<double>(count_);
  // x becomes R x, for the column of a matrix whose elements are `stride` apart.
  const auto turn = [&](double* x, std::size_t stride) {
    for (std::uint32_t i = 0; i < half; ++i) {
      double &a = x[i * stride], &b = x[(i + half) * stride];
      const double turned_a = cosines[i] * a - sines[i] * b;
      b = sines[i] * a + cosines[i] * b;
      a = turned_a;
    }
  };
  std::vector<double> m(dim_);
  for (std::uint32_t i = 0; i < dim_; ++i) m[i] = sum_[i] / n;
  if (!covariance.empty()) {
    CHECK(covariance.size() == products_.size());
    std::vector<double> c(products_.size());
    for (std::uint32_t i = 0; i < dim_; ++i)
      for (std::uint32_t j = 0; j < dim_; ++j)
        c[std::size_t{i} * dim_ + j] = products_[std::size_t{i} * dim_ + j] / n - m[i] * m[j];
    for (std::uint32_t j = 0; j < dim_; ++j) turn(&c[j], dim_);                   // R C
    for (std::uint32_t i = 0; i < dim_; ++i) turn(&c[std::size_t{i} * dim_], 1);  // (R C) R^T
    for (std::size_t i = 0; i < c.size(); ++i) covariance[i] = static_cast<float>(c[i]);
  }
  turn(m.data(), 1);
  for (std::uint32_t i = 0; i < dim_; ++i) mean[i] = static_cast<float>(m[i]);
}

void mean_rotation(std::span<const double> frequencies, std::uint32_t first, std::uint32_t count,
                   std::span<double> cosines, std::span<double> sines) {
  CHECK(count > 0 && cosines.size() == frequencies.size() && sines.size() == frequencies.size());
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    double c = 0, s = 0;
    for (std::uint32_t p = first; p < first + count; ++p) {
      c += std::cos(p * frequencies[i]);
      s += std::sin(p * frequencies[i]);
    }
    cosines[i] = c / count;
    sines[i] = s / count;
  }
}

}  // namespace quire
