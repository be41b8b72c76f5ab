// base/histogram.h - counts of values by fixed upper bounds, and a small sketch of the gaps between
// one answer's tokens. Plain data: one thread adds, the engine copies between steps, metrics read.
//
//   static constexpr double kBounds[] = {.001, .01, .1, 1};
//   Histogram h(kBounds);
//   h.add(0.02);                       // counts[2]
//   GapSketch gaps;
//   gaps.add(0.011);  gaps.quantile(0.99);
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

namespace quire {

// The last bucket is everything above the bounds.
struct Histogram {
  static constexpr std::size_t kBucketsMax = 24;

  Histogram() = default;
  explicit Histogram(std::span<const double> upper_bounds) : bounds(upper_bounds) {}

  void add(double value) {
    const auto at = std::lower_bound(bounds.begin(), bounds.end(), value) - bounds.begin();
    ++counts[static_cast<std::size_t>(at)];
    sum += value;
    ++count;
  }

  std::span<const double> bounds;  // of static storage
  std::array<std::uint64_t, kBucketsMax + 1> counts{};
  double sum = 0;
  std::uint64_t count = 0;
};

// Quantiles of seconds between 100 us and 6 s, within a tenth, in 256 bytes.
class GapSketch {
 public:
  void add(double seconds) {
    const double at = std::log2(std::max(seconds, kSmallest) / kSmallest) * kPerOctave;
    ++counts_[std::min(static_cast<std::size_t>(at), counts_.size() - 1)];
    ++count_;
  }
  double quantile(double q) const {  // 0 where nothing was added
    if (count_ == 0) return 0;
    const double rank = q * count_;
    double below = 0;
    std::size_t i = 0;
    while (i + 1 < counts_.size() && (below += counts_[i]) < rank) ++i;
    return kSmallest * std::exp2((static_cast<double>(i) + 0.5) / kPerOctave);
  }

 private:
  static constexpr double kSmallest = 1e-4, kPerOctave = 4;
  std::array<std::uint32_t, 64> counts_{};
  std::uint32_t count_ = 0;
};

}  // namespace quire
