#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>

namespace quire {
namespace {

TEST(ThreadPool, EveryThreadRunsOnceAndBarriersSeparateTheHalves) {
  for (std::uint32_t threads = 1; threads <= 5; ++threads) {
    ThreadPool pool(threads);
    std::vector<int> first(threads), second(threads);
    for (int round = 0; round < 200; ++round) {
      pool.run([&](ThreadPool::Worker worker) {
        first[worker.index] = round + 1;
        worker.barrier();
        second[worker.index] = std::accumulate(first.begin(), first.end(), 0);
        worker.barrier();
      });
      for (const int sum : second) EXPECT_EQ(sum, static_cast<int>(threads) * (round + 1));
    }
  }
}

TEST(ThreadPool, WakesUpAfterSleeping) {
  ThreadPool pool(3);
  std::atomic<int> calls{0};
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.run([&](ThreadPool::Worker) { calls.fetch_add(1); });
  }
  EXPECT_EQ(calls.load(), 15);
}

}  // namespace
}  // namespace quire
