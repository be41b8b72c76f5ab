// model/rope.h - cosines and sines of rotary positions, computed once per position and kept.
//
// Angles are computed in double with this file's own sine and cosine, so that every machine gets
// the same bits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/rope_view.h"
#include "model/config.h"

namespace quire {

class RopeTable {
 public:
  explicit RopeTable(const RopeConfig& config);

  // Makes positions [0, end) available. Not while other threads read.
  void cover(std::uint32_t end);

  const std::vector<double>& frequencies() const { return frequencies_; }
  std::uint32_t half() const { return static_cast<std::uint32_t>(frequencies_.size()); }
  const float* cosines(std::uint32_t position) const { return view().cosines(position); }
  const float* sines(std::uint32_t position) const { return view().sines(position); }
  RopeView view() const { return {rows_.data(), half()}; }  // until cover() makes more available

 private:
  static constexpr std::uint32_t kChunk = RopeView::kChunk;
  std::vector<double> frequencies_;  // radians per position of each pair
  std::vector<std::unique_ptr<float[]>> chunks_;
  std::vector<const float*> rows_;  // where they are
};

}  // namespace quire
