#include "engine/nucleus.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

Nucleus::Nucleus(const VectorKernels& vector, std::uint32_t vocabulary)
    : vector_(vector),
      values_(vocabulary + 1),
      tokens_(vocabulary + 1),
      other_values_(vocabulary + 1),
      other_tokens_(vocabulary + 1),
      bins_(vocabulary + 1) {}

// In the order of ids. Most runs of tokens have none that is near enough.
void Nucleus::collect(std::span<const float> scaled, float floor) {
  constexpr std::size_t kRun = 64;
  CHECK(scaled.size() < values_.size());
  std::size_t n = 0;
  for (std::size_t first = 0; first < scaled.size(); first += kRun) {
    const std::size_t end = std::min(first + kRun, scaled.size());
    const auto length = static_cast<std::uint32_t>(end - first);
    if (!(vector_.max(&scaled[first], length) >= floor)) continue;
    for (std::size_t i = first; i < end; ++i) {  // without a branch that could be mispredicted
      values_[n] = scaled[i];
      tokens_[n] = static_cast<TokenId>(i);
      n += scaled[i] >= floor;
    }
  }
  count_ = n;
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
  const float by = least < 0 ? static_cast<float>(kBins) / -least : 0;
  first_.fill(0);
  for (std::size_t i = 0; i < count_; ++i) {
    bins_[i] = std::min<std::uint32_t>(kBins - 1, static_cast<std::uint32_t>(-values_[i] * by));
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

// Of these, the first in order of value that weigh `mass` stay, and none behind them.
void Nucleus::cut(std::size_t from, std::size_t to, double mass) {
  std::uint32_t* const order = bins_.data();
  for (std::size_t i = from; i < to; ++i) order[i] = static_cast<std::uint32_t>(i);
  std::sort(order + from, order + to, [&](std::uint32_t a, std::uint32_t b) {
    return values_[a] != values_[b] ? values_[a] > values_[b] : tokens_[a] < tokens_[b];
  });
  double kept = 0;
  std::size_t end = from;
  while (end < to && kept < mass) {
    other_values_[end] = values_[order[end]];
    other_tokens_[end] = tokens_[order[end]];
    kept += weigh(order[end], order[end] + 1);
    ++end;
  }
  std::copy(other_values_.begin() + from, other_values_.begin() + end, values_.begin() + from);
  std::copy(other_tokens_.begin() + from, other_tokens_.begin() + end, tokens_.begin() + from);
  count_ = end;
}

void Nucleus::keep_mass(std::span<const float> scaled, double mass) {
  // The head is looked at first, as most distributions are steep.
  for (float reach = 4;; reach *= 2) {
    collect(scaled, -reach);
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
