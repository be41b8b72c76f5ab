// model/rope.h - cosines and sines of rotary positions, computed once per position and kept.
//
// Angles are formed and reduced in double by arithmetic of our own, so that every machine gets the
// same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "model/config.h"

namespace quire {

class RopeTable {
 public:
  explicit RopeTable(const RopeConfig& config);

  // Makes positions [0, end) available. Not while other threads read.
  void cover(std::uint32_t end);

  const std::vector<double>& frequencies() const { return frequencies_; }
  std::uint32_t half() const { return static_cast<std::uint32_t>(frequencies_.size()); }
  const float* cosines(std::uint32_t position) const { return row(position); }
  const float* sines(std::uint32_t position) const { return row(position) + half(); }

 private:
  static constexpr std::uint32_t kChunk =
      256;  // positions per piece, so that growing moves nothing
  const float* row(std::uint32_t position) const {
    return chunks_[position / kChunk].get() + std::size_t{position % kChunk} * 2 * half();
  }
  std::vector<double> frequencies_;  // radians per position of each pair
  std::vector<std::unique_ptr<float[]>> chunks_;
};

}  // namespace quire
