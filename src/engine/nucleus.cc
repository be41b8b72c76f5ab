#include "engine/nucleus.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"

namespace quire {

Nucleus::Nucleus(const VectorKernels& vector, std::uint32_t vocabulary)
    : vector_(vector),
      values_(vocabulary + 1),
      tokens_(vocabulary + 1),
      other_values_(vocabulary + 1),
      other_tokens_(vocabulary + 1),
      bins_(vocabulary + 1) {}

// In the order of ids.
void Nucleus::collect(std::span<const float> scaled, float floor, std::span<const TokenId> of) {
  CHECK(scaled.size() < values_.size());
  count_ = vector_.above(scaled.data(), floor, static_cast<std::uint32_t>(scaled.size()),
                         tokens_.data());
  for (std::size_t i = 0; i < count_; ++i) values_[i] = scaled[tokens_[i]];
  for (std::size_t i = 0; !of.empty() && i < count_; ++i) tokens_[i] = of[tokens_[i]];
}

// The count-th largest of the maxima of runs is at most the count-th largest value: what is below
// need not be looked at.
void Nucleus::keep_best(std::span<const float> values, std::size_t count,
                        std::span<const TokenId> of) {
  constexpr std::size_t kRun = 64;
  const std::size_t runs = (values.size() + kRun - 1) / kRun;
  float floor = -INFINITY;
  if (count < runs) {
    for (std::size_t r = 0; r < runs; ++r)
      other_values_[r] = vector_.max(
          &values[r * kRun], static_cast<std::uint32_t>(std::min(kRun, values.size() - r * kRun)));
    const auto at = other_values_.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(other_values_.begin(), at - 1,
                     other_values_.begin() + static_cast<std::ptrdiff_t>(runs), std::greater<>());
    floor = *(at - 1);
  }
  collect(values, floor, of);
  sort(0, count_);
  count_ = std::min(count, count_);
}

void Nucleus::keep_above(float floor) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    if (!(values_[i] >= floor)) continue;
    values_[n] = values_[i];
    tokens_[n++] = tokens_[i];
  }
  count_ = n;
}

double Nucleus::weigh(std::size_t from, std::size_t to) const {
  return vector_.sum_exp(&values_[from], 0, static_cast<std::uint32_t>(to - from));
}

// Best bins first, by ids within: a counting sort.
void Nucleus::order_by_bins() {
  const float least = *std::min_element(values_.begin(), values_.begin() + count_);
  const float by = least < -1e-30f ? static_cast<float>(kBins) / -least : 0;  // stays finite
  first_.fill(0);
  for (std::size_t i = 0; i < count_; ++i) {
    bins_[i] = static_cast<std::uint32_t>(
        std::min<std::int32_t>(kBins - 1, static_cast<std::int32_t>(-values_[i] * by)));
    ++first_[bins_[i] + 1];
  }
  for (std::size_t b = 1; b <= kBins; ++b) first_[b] += first_[b - 1];
  for (std::size_t i = 0; i < count_; ++i) {
    const std::uint32_t at = first_[bins_[i]]++;
    other_values_[at] = values_[i];
    other_tokens_[at] = tokens_[i];
  }
  std::copy_backward(first_.begin(), first_.end() - 1, first_.end());
  first_[0] = 0;
  values_.swap(other_values_);
  tokens_.swap(other_tokens_);
}

void Nucleus::sort(std::size_t from, std::size_t to) {
  std::uint32_t* const order = bins_.data();
  for (std::size_t i = from; i < to; ++i) order[i] = static_cast<std::uint32_t>(i);
  std::sort(order + from, order + to, [&](std::uint32_t a, std::uint32_t b) {
    return values_[a] != values_[b] ? values_[a] > values_[b] : tokens_[a] < tokens_[b];
  });
  for (std::size_t i = from; i < to; ++i) {
    other_values_[i] = values_[order[i]];
    other_tokens_[i] = tokens_[order[i]];
  }
  const auto first = static_cast<std::ptrdiff_t>(from), last = static_cast<std::ptrdiff_t>(to);
  std::copy(other_values_.begin() + first, other_values_.begin() + last, values_.begin() + first);
  std::copy(other_tokens_.begin() + first, other_tokens_.begin() + last, tokens_.begin() + first);
}

// Of these, the first in order of value that weigh `mass` stay, and none behind them.
void Nucleus::cut(std::size_t from, std::size_t to, double mass) {
  sort(from, to);
  double kept = 0;
  count_ = from;
  while (count_ < to && kept < mass) {
    kept += weigh(count_, count_ + 1);
    ++count_;
  }
}

void Nucleus::keep_mass(std::span<const float> scaled, double mass, std::span<const TokenId> of) {
  // The head is looked at first, as most distributions are steep.
  for (float reach = 8;; reach *= 2) {
    collect(scaled, -reach, of);
    if (reach > 100 || weigh(0, count_) >= mass) break;  // beyond, weights are nothing
  }
  constexpr std::size_t kFew = 64;
  if (count_ <= kFew) return cut(0, count_, mass);
  order_by_bins();
  double kept = 0;
  for (std::size_t b = 0; b < kBins; ++b) {
    if (first_[b] == first_[b + 1]) continue;
    const double here = weigh(first_[b], first_[b + 1]);
    if (kept + here >= mass) return cut(first_[b], first_[b + 1], mass - kept);
    kept += here;
  }
}

}  // namespace quire
