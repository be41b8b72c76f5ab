// cli/timing.h - how long something took, and the middle of several measurements. For `quire bench`.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace quire::cli {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

inline double median(std::vector<double> v) {
  std::ranges::sort(v);
  return (v[v.size() / 2] + v[(v.size() - 1) / 2]) / 2;
}

}  // namespace quire::cli
