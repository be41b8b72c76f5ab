#include "server/work_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

namespace quire {
namespace {

using namespace std::chrono_literals;

WorkPool::Job job_of(std::string whose, std::function<void()> work) {
  return {std::move(whose), std::make_shared<Stop>(), std::move(work)};
}

void spin_until_stopped() {
  while (!stop_asked()) std::this_thread::sleep_for(1ms);
}

TEST(WorkPool, ASlowJobHoldsUpNobody) {
  WorkPool pool({.threads = 2, .slow_max = 8, .slow_after = 20ms});
  for (int i = 0; i < 6; ++i) pool.run(job_of("a", spin_until_stopped));
  std::promise<void> done;
  pool.run(job_of("b", [&] { done.set_value(); }));
  EXPECT_EQ(done.get_future().wait_for(5s), std::future_status::ready);
}

TEST(WorkPool, TheJobThatRanLongestMakesRoom) {
  WorkPool pool({.threads = 1, .slow_max = 2, .slow_after = 10ms});
  const auto first = std::make_shared<Stop>();
  pool.run({"a", first, spin_until_stopped});
  for (int i = 0; i < 4; ++i) pool.run(job_of("a", spin_until_stopped));
  std::promise<void> done;
  pool.run(job_of("a", [&] { done.set_value(); }));
  EXPECT_EQ(done.get_future().wait_for(60s), std::future_status::ready);
  EXPECT_EQ(first->why(), Stop::Why::too_long);
}

TEST(WorkPool, ClientsTakeTurns) {
  WorkPool pool({.threads = 1});
  std::promise<void> go;
  const std::shared_future<void> begun = go.get_future().share();
  std::string order;
  pool.run(job_of("x", [begun] { begun.wait(); }));
  for (int i = 0; i < 3; ++i) pool.run(job_of("a", [&] { order += 'a'; }));
  pool.run(job_of("b", [&] { order += 'b'; }));
  go.set_value();
  ASSERT_TRUE(pool.idle_within(5s));
  EXPECT_EQ(order.find('b') < 2, true) << order;
}

TEST(WorkPool, WhatUsesTooMuchOfTheProcessorIsStopped) {
  WorkPool pool({.slow_after = 1h, .seconds_max = 0.05});
  const auto stop = std::make_shared<Stop>();
  pool.run({"a", stop, [] {
              while (!stop_asked()) {
              }
            }});
  ASSERT_TRUE(pool.idle_within(60s));
  EXPECT_EQ(stop->why(), Stop::Why::too_long);
}

TEST(WorkPool, EveryJobRunsAndAShutdownAsksAllToStop) {
  std::atomic<int> ran = 0, told = 0;
  {
    WorkPool pool({.threads = 2});
    for (int i = 0; i < 100; ++i)
      pool.run(job_of("a", [&] {
        ++ran;
        if (stop_asked()) return void(++told);
        spin_until_stopped();
      }));
    pool.stop_all();
  }
  EXPECT_EQ(ran, 100);
  EXPECT_GE(told, 90);
}

}  // namespace
}  // namespace quire
