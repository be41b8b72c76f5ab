// kv/retain/keys.cc - methods that need no attention, only keys (and values): Knorm, KeyDiff,
// LagKV, CUR.
#include <algorithm>

#include "kv/retain/score.h"

namespace quire {
namespace {
using retain::dot, retain::head_of, retain::norm, retain::row_of;

std::span<const float> key(const RetainInput& in, std::uint32_t head, std::uint32_t slot) {
  return row_of(in.keys, std::size_t{head} * in.slots + slot, in.key_dim);
}

std::span<const float> value(const RetainInput& in, std::uint32_t head, std::uint32_t slot) {
  return row_of(in.values, std::size_t{head} * in.slots + slot, in.value_dim);
}

// Keys of small norm are those that attention likes.
void small_norm(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  for (std::uint32_t h = 0; h < in.kv_heads; ++h)
    for (std::uint32_t s = 0; s < in.slots; ++s) head_of(scores, in, h)[s] = -norm(key(in, h, s));
}

// Keys unlike the average direction.
void unlike_mean(const RetainMethod&, const RetainInput& in, std::span<float> scores) {
  std::vector<float> anchor(in.key_dim), norms(in.slots);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    std::fill(anchor.begin(), anchor.end(), 0.0f);
    for (std::uint32_t s = 0; s < in.slots; ++s) {
      const std::span<const float> k = key(in, h, s);
      norms[s] = std::max(norm(k), 1e-12f);
      for (std::uint32_t c = 0; c < in.key_dim; ++c) anchor[c] += k[c] / norms[s];
    }
    const float size = std::max(norm(anchor), 1e-12f);
    for (std::uint32_t s = 0; s < in.slots; ++s)
      head_of(scores, in, h)[s] = -(dot(key(in, h, s), anchor) / (norms[s] * size));
  }
}

// Standard deviation over channels of one row after each channel was scaled to the range it has in
// the reference rows.
float spread(std::span<const float> row, std::span<const float> low, std::span<const float> high) {
  double sum = 0, squares = 0;
  for (std::size_t c = 0; c < row.size(); ++c) {
    const float range = high[c] - low[c];
    const double x = range > 0 ? (row[c] - low[c]) / range : 0;
    sum += x;
    squares += x * x;
  }
  const double n = static_cast<double>(row.size());
  return static_cast<float>(std::sqrt(std::max(0.0, (squares - sum * sum / n) / (n - 1))));
}

template <class Row>
void lag_spread(Row row, std::uint32_t dim, std::uint32_t first, std::uint32_t lag,
                std::span<float> out) {
  std::vector<float> low(dim), high(dim), part(lag);
  for (std::uint32_t i = 0; i < lag; ++i)
    for (std::uint32_t c = 0; c < dim; ++c) {
      const float x = row(first + lag + i)[c];
      low[c] = i == 0 ? x : std::min(low[c], x);
      high[c] = i == 0 ? x : std::max(high[c], x);
    }
  for (std::uint32_t i = 0; i < lag; ++i) part[i] = spread(row(first + i), low, high);
  retain::softmax(part);
  for (std::uint32_t i = 0; i < lag; ++i) out[i] += part[i] / 2;
}

// Each run of `window` tokens is measured against the ranges of the run that follows it; a slot's
// score is its rank within its run, so that every run keeps its share. The tail that has no
// successor stays.
void lag_relative(const RetainMethod& m, const RetainInput& in, std::span<float> scores) {
  const std::uint32_t lag = m.window;
  const std::uint32_t runs = in.slots > m.sinks ? (in.slots - m.sinks) / lag : 0;
  std::vector<std::uint32_t> order(lag);
  std::vector<float> part(lag);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    const std::span<float> out = head_of(scores, in, h);
    std::fill(out.begin(), out.end(), 2.0f);  // ranks are below 1
    for (std::uint32_t r = 0; r + 1 < runs; ++r) {
      const std::uint32_t first = m.sinks + r * lag;
      std::fill(part.begin(), part.end(), 0.0f);
      lag_spread([&](std::uint32_t s) { return key(in, h, s); }, in.key_dim, first, lag, part);
      lag_spread([&](std::uint32_t s) { return value(in, h, s); }, in.value_dim, first, lag, part);
      for (std::uint32_t i = 0; i < lag; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return part[a] > part[b]; });
      for (std::uint32_t i = 0; i < lag; ++i)
        out[first + order[i]] = static_cast<float>(lag - 1 - i) / static_cast<float>(lag);
    }
  }
}

// Squared norms of key and value, each as a share of its neighbourhood's.
void leverage(const RetainMethod& m, const RetainInput& in, std::span<float> scores) {
  const auto shares = [&](auto row, std::vector<float>& x) {
    for (std::uint32_t s = 0; s < in.slots; ++s) x[s] = dot(row(s), row(s));
    for (std::uint32_t first = 0; first < in.slots; first += m.window) {
      const std::uint32_t end = std::min(in.slots, first + m.window);
      float sum = 0;
      for (std::uint32_t s = first; s < end; ++s) sum += x[s];
      for (std::uint32_t s = first; s < end; ++s) x[s] = sum > 0 ? x[s] / sum : 0;
    }
  };
  std::vector<float> k(in.slots), v(in.slots);
  for (std::uint32_t h = 0; h < in.kv_heads; ++h) {
    shares([&](std::uint32_t s) { return key(in, h, s); }, k);
    shares([&](std::uint32_t s) { return value(in, h, s); }, v);
    for (std::uint32_t s = 0; s < in.slots; ++s) head_of(scores, in, h)[s] = k[s] * v[s];
  }
}
}  // namespace

extern const RetainMethod kRetainKnorm = {
    .name = "knorm",
    .source = "L2 norm of keys, arXiv 2406.11430",
    .summary = "keys of small norm; says nothing under QK-norm",
    .when = RetainWhen::both,
    .needs = Signal::keys,
    .score = small_norm,
};
extern const RetainMethod kRetainKeyDiff = {
    .name = "keydiff",
    .source = "KeyDiff, arXiv 2504.15364",
    .summary = "keys unlike the average direction",
    .when = RetainWhen::both,
    .needs = Signal::keys,
    .score = unlike_mean,
};
extern const RetainMethod kRetainLagKv = {
    .name = "lagkv",
    .source = "LagKV, arXiv 2504.04704",
    .summary = "keys and values that vary most, measured by the 128 tokens after them",
    .needs = Signal::keys | Signal::values,
    .score = lag_relative,
    .sinks = 4,
    .window = 128,
};
extern const RetainMethod kRetainCur = {
    .name = "cur",
    .source = "CurDKV, arXiv 2509.15038",
    .summary = "large keys times large values, within neighbourhoods of 16",
    .needs = Signal::keys | Signal::values,
    .score = leverage,
    .sinks = 4,
    .window = 16,
};

}  // namespace quire
