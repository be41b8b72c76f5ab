// kv/tier/courier.h - a thread that runs what it is given, in order: hashing and naming that the
// engine thread leaves to others.
//
//   Courier courier(Courier::Way::thread);      // Way::at_once: no thread, for simulations
//   courier.run([=] { tier->write(named(blocks), done); });
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

#include "kv/tier/mailbox.h"

namespace quire {

class Courier {
 public:
  enum class Way : std::uint8_t { thread, at_once };

  explicit Courier(Way way) : way_(way), inbox_([this] { wake(); }) {
    if (way_ == Way::thread) thread_ = std::thread([this] { work(); });
  }
  Courier(const Courier&) = delete;
  ~Courier() {  // runs what it was given
    if (!thread_.joinable()) return;
    stop();
    thread_.join();
  }

  // Runs what it was given and ends. False: it is still at it; then this may not be destroyed.
  bool end_within(std::chrono::nanoseconds limit) {
    if (!thread_.joinable()) return true;
    stop();
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!ended_.load(std::memory_order_acquire)) {
      if (std::chrono::steady_clock::now() > end) {
        thread_.detach();
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    thread_.join();
    return true;
  }

  void run(std::function<void()> errand) {
    if (way_ == Way::at_once)
      errand();
    else
      inbox_.post(std::move(errand));
  }

 private:
  void stop() {
    stopping_.store(true, std::memory_order_release);
    wake();
  }
  void wake() {
    posted_.fetch_add(1, std::memory_order_release);
    posted_.notify_one();
  }
  void work() {
    for (std::uint32_t seen = 0;;) {
      const bool last = stopping_.load(std::memory_order_acquire);
      if (inbox_.drain() > 0) continue;
      if (last) break;
      posted_.wait(seen, std::memory_order_acquire);
      seen = posted_.load(std::memory_order_acquire);
    }
    ended_.store(true, std::memory_order_release);
  }

  Way way_;
  std::atomic<bool> stopping_{false}, ended_{false};
  std::atomic<std::uint32_t> posted_{0};
  Mailbox inbox_;
  std::thread thread_;
};

}  // namespace quire
