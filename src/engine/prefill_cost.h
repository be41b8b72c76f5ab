// engine/prefill_cost.h - what computing a prompt token costs here, measured step by step.
//
// A token costs a part of its own and a part per position before it (attention). Both are fitted to
// the steps that read prompts; old steps count less and less. Eviction, preemption and `explain`
// use it.
//
//   cost.add(512, 1024, 0.35e9);           // 512 rows at mean position 1024 took 0.35e9 ns
//   cost.ns(0, 4000);                      // of tokens 0..3999
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire {

class PrefillCost {
 public:
  static constexpr std::uint32_t kRowsMin = 64;  // steps with fewer tell more of reading weights

  void add(std::uint32_t rows, double mean_position, double step_ns) {
    if (rows < kRowsMin) return;
    constexpr double kKeep = 0.95;
    const double y = step_ns / rows, x = mean_position;
    for (double* sum : {&count_, &x_, &y_, &xx_, &xy_}) *sum *= kKeep;
    count_ += 1;
    x_ += x;
    y_ += y;
    xx_ += x * x;
    xy_ += x * y;
    // If all steps were at nearly the same position, the slope is unknown.
    constexpr double kSpread = 100 * 100;
    const double mean_x = x_ / count_, mean_y = y_ / count_;
    const double slope =
        (xy_ / count_ - mean_x * mean_y) / (xx_ / count_ - mean_x * mean_x + kSpread);
    token_position_ns_ = std::clamp(slope, 0.0, 0.9 * mean_y / std::max(mean_x, 1.0));
    token_ns_ = mean_y - token_position_ns_ * mean_x;
  }

  bool known() const { return count_ > 0; }
  double token_ns() const { return token_ns_; }
  double token_position_ns() const { return token_position_ns_; }
  double token_seconds() const {  // of a token where prompts were read lately
    return known() ? y_ / count_ * 1e-9 : 0;
  }
  // Of the tokens from one position to another. Before anything was measured: their number.
  double ns(double from, double to) const {
    if (!known()) return to - from;
    return (to - from) * (token_ns_ + token_position_ns_ * (from + to) / 2);
  }

 private:
  double count_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // of steps, fading
  double token_ns_ = 0, token_position_ns_ = 0;
};

}  // namespace quire
