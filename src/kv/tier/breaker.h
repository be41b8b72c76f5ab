// kv/tier/breaker.h - stops asking a place that does not answer, and tries again by itself.
//
// Closed: calls go through. After `failures_max` calls in a row failed it opens: calls are refused at
// once. When the wait is over one call may try; if it works the breaker closes, otherwise it waits
// twice as long, up to `wait_max`. Several threads may use one breaker.
//
//   if (!breaker.may_try(clock.now())) return refused;
//   breaker.ended(works, clock.now());
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/clock.h"

namespace quire {

struct BreakerOptions {
  std::uint32_t failures_max = 3;
  Nanoseconds wait_first = 1'000'000'000, wait_max = 60'000'000'000;
};

class Breaker {
 public:
  explicit Breaker(const BreakerOptions& options = {}) : options_(options) {}

  bool may_try(Nanoseconds now) {
    const std::lock_guard lock(mutex_);
    if (failures_ < options_.failures_max) return true;
    if (now < next_try_) return false;
    next_try_ = now + wait_;  // one call tries; the others wait for how it ends
    return true;
  }

  // Opens at once: a call does not come back. True: it was closed.
  bool trip(Nanoseconds now) {
    {
      const std::lock_guard lock(mutex_);
      if (failures_ >= options_.failures_max) return false;
      failures_ = options_.failures_max - 1;
    }
    return ended(false, now);
  }

  // It is open, and time for a call that tries.
  bool due(Nanoseconds now) const {
    const std::lock_guard lock(mutex_);
    return failures_ >= options_.failures_max && now >= next_try_;
  }

  // True: the breaker has just opened or closed.
  bool ended(bool works, Nanoseconds now) {
    const std::lock_guard lock(mutex_);
    const bool was_open = failures_ >= options_.failures_max;
    if (works) {
      open_ = false;
      failures_ = 0;
      wait_ = 0;
      return was_open;
    }
    if (++failures_ < options_.failures_max) return false;
    failures_ = options_.failures_max;
    wait_ = wait_ == 0 ? options_.wait_first : std::min(2 * wait_, options_.wait_max);
    next_try_ = now + wait_;
    open_ = true;
    openings_ += !was_open;
    return !was_open;
  }

  // These two take no lock.
  bool open() const { return open_.load(std::memory_order_relaxed); }
  std::uint64_t openings() const { return openings_.load(std::memory_order_relaxed); }

 private:
  const BreakerOptions options_;
  mutable std::mutex mutex_;
  std::uint32_t failures_ = 0;  // in a row
  Nanoseconds wait_ = 0, next_try_ = 0;
  std::atomic<bool> open_{false};
  std::atomic<std::uint64_t> openings_{0};
};

}  // namespace quire
