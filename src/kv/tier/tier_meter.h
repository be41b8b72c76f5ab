// kv/tier/tier_meter.h - what a tier measures about itself, written by its own thread and read by
// any other.
//
//   meter.queue(bytes);                      // the engine thread asked for this much
//   meter.served(first_s, rest_s, bytes);    // a batch of reads took this long ...
//   meter.unqueue(bytes);                    // ... and these bytes have ended
//   meter.publish(stats);                    // now and then
//   TierCost c = meter.cost();
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kv/tier/tier.h"

namespace quire {

class TierMeter {
 public:
  void queue(std::uint64_t bytes) { queued_.fetch_add(bytes, std::memory_order_relaxed); }
  void unqueue(std::uint64_t bytes) { queued_.fetch_sub(bytes, std::memory_order_relaxed); }

  // A batch took `first_s` until its first part was usable, and `rest_s` for the bytes after it. A
  // batch weighs an eighth of the average; the first one is the average. Small ones tell no rate.
  void served(double first_s, double rest_s, std::uint64_t rest_bytes) {
    average(first_byte_s_, first_s);
    if (rest_s > 0 && rest_bytes >= kMeasuredBytes)
      average(seconds_per_byte_, rest_s / static_cast<double>(rest_bytes));
  }

  TierCost cost() const {
    const double per_byte = seconds_per_byte_.load(std::memory_order_relaxed);
    return {.first_byte_s = first_byte_s_.load(std::memory_order_relaxed),
            .bytes_per_s = per_byte > 0 ? 1 / per_byte : 0,
            .queued_bytes = queued_.load(std::memory_order_relaxed)};
  }
  void restore(const TierCost& cost) {  // from before a restart
    first_byte_s_ = cost.first_byte_s;
    seconds_per_byte_ = cost.bytes_per_s > 0 ? 1 / cost.bytes_per_s : 0;
  }

  void publish(const TierStats& stats) {
    const auto words = std::bit_cast<Words>(stats);
    for (std::size_t i = 0; i < words.size(); ++i)
      stats_[i].store(words[i], std::memory_order_relaxed);
  }
  TierStats stats() const {
    Words words;
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = stats_[i].load(std::memory_order_relaxed);
    return std::bit_cast<TierStats>(words);
  }

 private:
  static constexpr std::uint64_t kMeasuredBytes = 256 << 10;
  using Words = std::array<std::uint64_t, sizeof(TierStats) / sizeof(std::uint64_t)>;

  static void average(std::atomic<double>& of, double value) {
    const double before = of.load(std::memory_order_relaxed);
    of.store(before == 0 ? value : before + (value - before) / 8, std::memory_order_relaxed);
  }
  std::atomic<double> first_byte_s_{0}, seconds_per_byte_{0};
  std::atomic<std::uint64_t> queued_{0};
  std::array<std::atomic<std::uint64_t>, std::tuple_size_v<Words>> stats_{};
};

}  // namespace quire
