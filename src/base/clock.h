// base/clock.h - time as an interface, so that a simulation can own it.
#pragma once

#include <chrono>
#include <cstdint>

namespace quire {

using Nanoseconds = std::int64_t;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() const = 0;  // monotonic
};

class SteadyClock final : public Clock {
 public:
  Nanoseconds now() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Moves only when told to.
class ManualClock final : public Clock {
 public:
  Nanoseconds now() const override { return now_; }
  void advance(Nanoseconds by) { now_ += by; }

 private:
  Nanoseconds now_ = 0;
};

}  // namespace quire
