// lab/speed/timing.h - how long something took, and the middle of several measurements. For `quire bench`.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace quire::lab {

// Runs from its construction on.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline double median(std::vector<double> v) {
  std::ranges::sort(v);
  return (v[v.size() / 2] + v[(v.size() - 1) / 2]) / 2;
}

}  // namespace quire::lab
