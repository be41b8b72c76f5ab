#include "base/thread_pool.h"

#include <chrono>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define QUIRE_PAUSE() _mm_pause()
#else
#define QUIRE_PAUSE() std::this_thread::yield()
#endif

namespace quire {
namespace {

// After this many pauses a spinning thread starts to yield, so that more threads than cores still
// make progress.
constexpr int kPausesBeforeYield = 4096;
constexpr auto kSpinTime = std::chrono::microseconds(50);

template <class Done>
void spin_until(Done done) {
  for (int i = 0; !done(); ++i) {
    if (i < kPausesBeforeYield)
      QUIRE_PAUSE();
    else
      std::this_thread::yield();
  }
}

}  // namespace

void SpinBarrier::wait() {
  const std::uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
}

ThreadPool::ThreadPool(std::uint32_t thread_count) : size_(thread_count), barrier_(thread_count) {
  CHECK(thread_count >= 1);
  for (std::uint32_t i = 1; i < size_; ++i) threads_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_.store(true);
    generation_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::run_erased(Job job, void* context) {
  job_ = job;
  context_ = context;
  running_.store(size_ - 1, std::memory_order_relaxed);
  generation_.fetch_add(1);  // sequentially consistent: pairs with the sleeper's count below
  if (sleepers_.load() > 0) {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  job(context, Worker{0, size_, &barrier_});
  spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::work(std::uint32_t index) {
  std::uint64_t seen = 0;
  for (;;) {
    const auto started = std::chrono::steady_clock::now();
    for (int i = 1; generation_.load(std::memory_order_acquire) == seen; ++i) {
      QUIRE_PAUSE();
      if (i % 64 != 0 || std::chrono::steady_clock::now() - started < kSpinTime) continue;
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return generation_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    ++seen;
    if (stopping_.load()) return;
    job_(context_, Worker{index, size_, &barrier_});
    running_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace quire
