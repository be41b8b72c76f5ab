// engine/waiting_sink_testing.h - for tests of services: what one thread is told and another waits for.
#pragma once

#include <condition_variable>
#include <mutex>

#include "engine/engine_testing.h"

namespace quire {

// A MemorySink that one thread tells and another waits for.
class WaitingSink : public MemorySink {
 public:
  using MemorySink::MemorySink;
  void token(std::uint32_t choice, const Choice& t) override {
    {
      const std::lock_guard lock(mutex_);
      MemorySink::token(choice, t);
    }
    changed_.notify_all();
  }
  void done(const Done& d) override {
    {
      const std::lock_guard lock(mutex_);
      MemorySink::done(d);
    }
    changed_.notify_all();
  }
  void failed(const Failure& f) override {
    {
      const std::lock_guard lock(mutex_);
      MemorySink::failed(f);
    }
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over(); });
  }
  void wait_for_tokens(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return over() || answers[0].tokens.size() >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace quire
