// server/hit_history.h - the hit rate of the last minutes, out of counters that only grow.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "base/clock.h"

namespace quire {

class HitHistory {
 public:
  struct Rates {
    double minute = 0, ten_minutes = 0;
  };

  // Called now and then; keeps one sample a second at most, for ten minutes.
  void sample(Nanoseconds now, std::uint64_t queried, std::uint64_t hit) {
    std::lock_guard lock(mutex_);
    if (!samples_.empty() && now - samples_.back().time < kSecond) return;
    samples_.push_back({now, queried, hit});
    while (samples_.front().time < now - 600 * kSecond) samples_.pop_front();
  }

  Rates rates(Nanoseconds now, std::uint64_t queried, std::uint64_t hit) const {
    std::lock_guard lock(mutex_);
    const auto since = [&](Nanoseconds from) {
      Sample base{};
      for (const Sample& s : samples_) {
        if (s.time >= from) break;
        base = s;
      }
      const std::uint64_t asked = queried - base.queried;
      return asked == 0 ? 0.0 : static_cast<double>(hit - base.hit) / static_cast<double>(asked);
    };
    return {since(now - 60 * kSecond), since(now - 600 * kSecond)};
  }

 private:
  static constexpr Nanoseconds kSecond = 1'000'000'000;
  struct Sample {
    Nanoseconds time = 0;
    std::uint64_t queried = 0, hit = 0;
  };
  mutable std::mutex mutex_;
  std::deque<Sample> samples_;
};

}  // namespace quire
