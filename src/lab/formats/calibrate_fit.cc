// How a lane is fitted: one-dimensional k-means over a histogram for KVQuant's levels, k-means over
// groups of channels for coupled quantization. No weights by sensitivity: that would take gradients.
#include <algorithm>
#include <cmath>

#include "lab/formats/calibrate.h"

namespace quire {
namespace {

constexpr double kInside = 0.99;  // of a channel's elements lie within its range
constexpr float kRangeMin = 1e-4f;
constexpr std::size_t kBins = 2048;  // over [-1, 1]
constexpr int kLevelRounds = 60, kCentroidRounds = 12;

// Weighted numbers in [-1, 1].
class Histogram1 {
 public:
  void add(float x, double weight) {
    const float place = (std::clamp(x, -1.0f, 1.0f) + 1) / 2 * static_cast<float>(kBins - 1);
    weights_[static_cast<std::size_t>(std::lround(place))] += weight;
  }

  // The levels with the least mean square distance: starts at quantiles, then Lloyd's steps.
  std::vector<float> levels(std::size_t count) const {
    std::vector<double> level(count);
    double total = 0, sum = 0;
    for (const double w : weights_) total += w;
    std::size_t at = 0;
    for (std::size_t bin = 0; bin < kBins; ++bin) {
      sum += weights_[bin];
      while (at < count && sum >= total * (2.0 * static_cast<double>(at) + 1) /
                                      (2.0 * static_cast<double>(count)))
        level[at++] = middle(bin);
    }
    while (at < count) level[at++] = 1;
    for (int round = 0; round < kLevelRounds; ++round) {
      std::size_t bin = 0;
      for (std::size_t i = 0; i < count; ++i) {
        const double end = i + 1 < count ? (level[i] + level[i + 1]) / 2 : 2;
        double weight = 0, moment = 0;
        for (; bin < kBins && middle(bin) < end; ++bin) {
          weight += weights_[bin];
          moment += weights_[bin] * middle(bin);
        }
        if (weight > 0) level[i] = moment / weight;
      }
    }
    std::ranges::sort(level);
    return {level.begin(), level.end()};
  }

 private:
  static double middle(std::size_t bin) {
    return 2.0 * static_cast<double>(bin) / static_cast<double>(kBins - 1) - 1;
  }
  std::vector<double> weights_ = std::vector<double>(kBins);
};

}  // namespace

LaneCalibration fit_kvquant(const Codec& codec, Side side, std::span<const float> rows,
                            std::uint32_t dim) {
  LaneCalibration lane;
  const std::size_t count = rows.size() / dim;
  lane.zero.assign(dim, 0.0f);
  lane.range.assign(dim, 1.0f);
  Histogram1 histogram;
  if (side == Side::keys) {
    std::vector<float> channel(count);
    for (std::uint32_t d = 0; d < dim; ++d) {
      for (std::size_t i = 0; i < count; ++i) channel[i] = rows[i * dim + d];
      std::ranges::sort(channel);
      const auto quantile = [&](double share) {
        return channel[static_cast<std::size_t>(share * static_cast<double>(count - 1))];
      };
      const float low = quantile((1 - kInside) / 2), high = quantile((1 + kInside) / 2);
      lane.zero[d] = (low + high) / 2;
      lane.range[d] = std::max((high - low) / 2, kRangeMin);
      for (const float x : channel)
        histogram.add((x - lane.zero[d]) / lane.range[d], double{lane.range[d]} * lane.range[d]);
    }
  } else {  // rows have their own scales: what the codec makes of them
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = rows.subspan(i * dim, dim);
      double mean = 0;
      for (const float x : row) mean += x / static_cast<double>(dim);
      std::vector<float> kept(row.begin(), row.end());
      const std::size_t aside = kvquant_sparse_max(dim);
      std::ranges::nth_element(kept, kept.end() - static_cast<std::ptrdiff_t>(aside), {},
                               [&](float x) { return std::fabs(x - mean); });
      kept.resize(dim - aside);
      const auto [low, high] = std::ranges::minmax(kept);
      const float zero = (low + high) / 2, range = std::max((high - low) / 2, kRangeMin);
      for (const float x : kept) histogram.add((x - zero) / range, double{range} * range);
    }
  }
  lane.levels = histogram.levels(std::size_t{1} << codec.bits);
  return lane;
}

LaneCalibration fit_coupled(const Codec& codec, std::span<const float> rows, std::uint32_t dim) {
  const std::size_t channels = codec.channels, codes = std::size_t{1} << (codec.bits * channels),
                    count = rows.size() / dim;
  LaneCalibration lane;
  std::vector<float> centroids(channels * codes), distance(codes);  // [channel][code]
  std::vector<double> sums(channels * codes), members(codes);
  for (std::size_t first = 0; first < dim; first += channels) {
    const auto at = [&](std::size_t i, std::size_t j) { return rows[i * dim + first + j]; };
    for (std::size_t k = 0; k < codes; ++k)  // begun at rows of the text, evenly spread
      for (std::size_t j = 0; j < channels; ++j)
        centroids[j * codes + k] = at(k * count / codes, j);
    for (int round = 0; round < kCentroidRounds; ++round) {
      std::ranges::fill(sums, 0);
      std::ranges::fill(members, 0);
      for (std::size_t i = 0; i < count; ++i) {
        std::ranges::fill(distance, 0.0f);
        for (std::size_t j = 0; j < channels; ++j) {
          const float x = at(i, j);
          const float* row = &centroids[j * codes];
          for (std::size_t k = 0; k < codes; ++k) distance[k] += (x - row[k]) * (x - row[k]);
        }
        const auto best =
            static_cast<std::size_t>(std::ranges::min_element(distance) - distance.begin());
        members[best] += 1;
        for (std::size_t j = 0; j < channels; ++j) sums[j * codes + best] += at(i, j);
      }
      for (std::size_t k = 0; k < codes; ++k)
        for (std::size_t j = 0; members[k] > 0 && j < channels; ++j)
          centroids[j * codes + k] = static_cast<float>(sums[j * codes + k] / members[k]);
    }
    for (std::size_t k = 0; k < codes; ++k)
      for (std::size_t j = 0; j < channels; ++j) lane.centroids.push_back(centroids[j * codes + k]);
  }
  return lane;
}

}  // namespace quire
