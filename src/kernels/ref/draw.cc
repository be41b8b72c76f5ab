// The scalar version of kernels/draw.h. Sums and exponentials are kernels/vector.h's.
#include "kernels/draw.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/vector.h"

namespace quire {
namespace {

constexpr std::size_t kPart = 256;

void change(std::vector<float>& x, const DrawRow& row, std::span<const DrawChange> changes) {
  const DrawChange* c = changes.data() + row.first_change;
  for (std::uint32_t i = 0; i < row.biased; ++i, ++c) x[c->token] += c->by;
  for (std::uint32_t i = 0; i < row.penalized; ++i, ++c) {
    float& logit = x[c->token];
    logit = logit > 0 ? logit / row.repetition : logit * row.repetition;
    logit -= c->by;
  }
  for (std::uint32_t i = 0; i < row.banned; ++i, ++c) x[c->token] = -INFINITY;
}

float weigh(std::span<const float> values) {
  return kVectorScalar.sum_exp(values.data(), 0, static_cast<std::uint32_t>(values.size()));
}

// The token that the draw falls on: first the part, then the value.
TokenId fall(std::span<const float> values, double unit) {
  std::vector<float> parts;
  double total = 0;
  for (std::size_t first = 0; first < values.size(); first += kPart) {
    parts.push_back(weigh(values.subspan(first, std::min(kPart, values.size() - first))));
    total += parts.back();
  }
  double left = unit * total;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (parts[p] == 0) continue;
    if (left >= parts[p]) {
      left -= parts[p];
      continue;
    }
    std::size_t last = p * kPart;
    for (std::size_t i = last; i < std::min(values.size(), (p + 1) * kPart); ++i) {
      const double w = weigh(values.subspan(i, 1));
      if (w == 0) continue;
      last = i;
      if ((left -= w) < 0) break;
    }
    return static_cast<TokenId>(last);
  }
  return static_cast<TokenId>(std::ranges::max_element(values) - values.begin());
}

// What the likely part begins at.
float floor_of(std::span<const float> values, const DrawRow& row, float total) {
  if (row.mode == DrawMode::top) {
    std::vector<float> sorted(values.begin(), values.end());
    const std::size_t k = std::min<std::size_t>(row.top_k, sorted.size()) - 1;
    std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(k), sorted.end(),
                     std::greater<>());
    return sorted[k];
  }
  if (row.top_p >= 1) return row.floor;
  for (float reach = 8;; reach *= 2) {  // as Nucleus::keep_mass looks for it
    double mass = 0;
    for (const float& v : values)
      if (v >= -reach) mass += weigh({&v, 1});
    if (reach > 100 || mass >= 1.001 * row.top_p * total) return -reach;
  }
}

}  // namespace

Drawn draw_scalar(std::span<const float> logits, const DrawRow& row,
                  std::span<const DrawChange> changes, DrawList& list) {
  const auto n = static_cast<std::uint32_t>(logits.size());
  Drawn drawn{.mode = row.mode};
  if (row.mode == DrawMode::logits) return drawn;
  drawn.max = kVectorScalar.max(logits.data(), n);
  drawn.finite = std::isfinite(logits[0]);
  if (row.logprob) drawn.sum = kVectorScalar.sum_exp(logits.data(), drawn.max, n);
  std::vector<float> x(logits.begin(), logits.end()), values(n);
  change(x, row, changes);
  const float most = kVectorScalar.max(x.data(), n);
  if (!std::isfinite(most)) {
    drawn.mode = DrawMode::logits;
    return drawn;
  }
  kVectorScalar.shifted(x.data(), most, row.inverse, n, values.data());
  if (row.mode == DrawMode::best || row.mode == DrawMode::whole) {
    drawn.token =
        row.mode == DrawMode::best ? kVectorScalar.argmax(x.data(), n) : fall(values, row.unit);
    drawn.logit = logits[drawn.token];
    return drawn;
  }
  if (row.mode == DrawMode::above && row.top_p < 1) drawn.total = weigh(values);
  const float floor = floor_of(values, row, drawn.total);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (!(values[i] >= floor)) continue;
    if (drawn.count == kDrawListMax) {  // too many: all of them, then
      drawn.mode = DrawMode::logits;
      return drawn;
    }
    list.tokens[drawn.count] = i;
    list.values[drawn.count] = values[i];
    list.logits[drawn.count++] = logits[i];
  }
  drawn.list = &list;
  return drawn;
}

}  // namespace quire
