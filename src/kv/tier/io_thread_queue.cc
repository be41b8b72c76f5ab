#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "kv/tier/io_queue.h"

namespace quire {
namespace {

// A few threads that call pread and pwrite. The caller sleeps until one of them has something.
class ThreadQueue final : public IoQueue {
 public:
  ThreadQueue() {
    for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ThreadQueue() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    asked_.notify_all();
    for (std::thread& t : threads_) t.join();
  }
  std::string_view way() const override { return "threads"; }

  void run(std::span<RawIo> requests, const std::function<void(std::size_t)>& ended) override {
    {
      const std::lock_guard lock(mutex_);
      for (std::size_t i = 0; i < requests.size(); ++i) waiting_.push_back({requests[i], i});
    }
    asked_.notify_all();
    for (std::size_t left = requests.size(); left > 0;) {
      std::vector<std::size_t> now;
      {
        std::unique_lock lock(mutex_);
        answered_.wait(lock, [&] { return !done_.empty(); });
        now.swap(done_);
      }
      left -= now.size();
      for (const std::size_t i : now) ended(i);
    }
  }

 private:
  struct Waiting {
    RawIo io;
    std::size_t number;
  };

  void work() {
    for (;;) {
      Waiting next;
      {
        std::unique_lock lock(mutex_);
        asked_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
        if (stopping_) return;
        next = waiting_.front();
        waiting_.pop_front();
      }
      IoRequest& r = *next.io.request;
      const auto at = static_cast<off_t>(r.at);
      const ssize_t moved = r.write ? ::pwrite(next.io.fd, r.bytes.data(), r.bytes.size(), at)
                                    : ::pread(next.io.fd, r.bytes.data(), r.bytes.size(), at);
      if (moved < 0)
        r.error = errno;
      else
        r.done = static_cast<std::size_t>(moved);
      {
        const std::lock_guard lock(mutex_);
        done_.push_back(next.number);
      }
      answered_.notify_one();
    }
  }

  static constexpr int kThreads = 8;
  std::mutex mutex_;
  std::condition_variable asked_, answered_;
  std::deque<Waiting> waiting_;
  std::vector<std::size_t> done_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<IoQueue> thread_queue() { return std::make_unique<ThreadQueue>(); }

}  // namespace quire
