// base/thread_pool.h - a few threads that run one function together, with barriers inside.
//
// The caller is thread 0. Workers spin for about 50 microseconds after work, then sleep, so an idle
// engine gives its cores back. One job at a time, from one thread.
//
//   ThreadPool pool(2);
//   pool.run([&](ThreadPool::Worker worker) {
//     first_half(worker.index, worker.count);
//     worker.barrier();                       // everyone has finished the first half
//     second_half(worker.index, worker.count);
//   });
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace quire {

// A barrier that spins: a crossing costs well under a microsecond while all threads are on a core.
class SpinBarrier {
 public:
  explicit SpinBarrier(std::uint32_t count) : count_(count) {}
  void wait();

 private:
  const std::uint32_t count_;
  alignas(64) std::atomic<std::uint32_t> arrived_{0};
  alignas(64) std::atomic<std::uint32_t> phase_{0};
};

class ThreadPool {
 public:
  struct Worker {
    std::uint32_t index, count;
    SpinBarrier* shared;
    void barrier() const {
      if (count > 1) shared->wait();
    }
  };

  explicit ThreadPool(std::uint32_t thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;

  std::uint32_t size() const { return size_; }

  // Calls f(Worker) on every thread and returns when all have returned.
  template <class F>
  void run(F&& f) {
    run_erased([](void* context,
                  Worker worker) { (*static_cast<std::remove_reference_t<F>*>(context))(worker); },
               const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Job = void (*)(void*, Worker);
  void run_erased(Job job, void* context);
  void work(std::uint32_t index);

  const std::uint32_t size_;
  SpinBarrier barrier_;
  Job job_ = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<std::uint64_t> generation_{0};
  alignas(64) std::atomic<std::uint32_t> running_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint32_t> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
};

}  // namespace quire
