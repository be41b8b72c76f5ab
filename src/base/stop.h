// base/stop.h - tells long work that its result is not wanted any more.
//
// Whoever waits for the result owns a Stop and asks it. The thread that works names it with a
// StopScope; loops over a client's text (templates, tokenizers) look at stop_asked() and return
// early with anything. Their caller must then look at the Stop before it uses what they returned.
//
//   Stop stop;                               // somewhere both sides can see
//   { StopScope scope(stop); tokens = tokenizer.encode(text); }
//   if (stop.asked()) return refuse();       // `tokens` may be incomplete
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace quire {

class Stop {
 public:
  enum class Why : std::uint8_t { none, client_gone, too_long, shutting_down };

  void ask(Why why) {  // any thread; the first reason stays
    Why none = Why::none;
    why_.compare_exchange_strong(none, why, std::memory_order_relaxed);
  }
  Why why() const { return why_.load(std::memory_order_relaxed); }
  bool asked() const { return why() != Why::none; }

 private:
  std::atomic<Why> why_{Why::none};
};

inline thread_local const Stop* current_stop = nullptr;  // of StopScope and stop_asked() alone

class StopScope {
 public:
  explicit StopScope(const Stop& stop) : outer_(std::exchange(current_stop, &stop)) {}
  ~StopScope() { current_stop = outer_; }
  StopScope(const StopScope&) = delete;

 private:
  const Stop* outer_;
};

inline bool stop_asked() { return current_stop != nullptr && current_stop->asked(); }

}  // namespace quire
