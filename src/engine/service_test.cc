#include "engine/service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/random.h"
#include "engine/engine_testing.h"
#include "engine/explain.h"
#include "engine/waiting_sink_testing.h"

namespace quire {
namespace {

class ServiceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Service> start(ServiceOptions options = {}, std::uint32_t threads = 2) {
    auto runtime = Runtime::open(
        file_.path(), {.threads = threads, .tokens_per_block = 16, .kv_cache_bytes = 2 << 20});
    EXPECT_TRUE(runtime.ok());
    auto service = Service::start(std::move(runtime.value()), std::move(options));
    EXPECT_TRUE(service.ok()) << service.error().message;
    return std::move(service.value());
  }

  static Request request(std::uint64_t seed, std::size_t length = 60,
                         std::uint32_t tokens_max = 10) {
    Request r;
    Random random(seed);
    for (std::size_t i = 0; i < length; ++i)
      r.prompt.push_back('a' + static_cast<TokenId>(random.below(26)));
    r.id = "r" + std::to_string(seed);
    r.tokens_max = tokens_max;
    r.ignore_end = true;
    r.sampling = {.temperature = 1, .seed = seed};
    return r;
  }

  TinyFile file_{{.layers = 2}};
};

TEST_F(ServiceTest, AnswersFromManyThreadsAsAlone) {
  auto service = start({.step_tokens = 64, .sequences_max = 16});
  constexpr int kThreads = 4, kEach = 40;
  std::vector<std::vector<std::shared_ptr<WaitingSink>>> sinks(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      Random random(static_cast<std::uint64_t>(t));
      for (int i = 0; i < kEach; ++i) {
        const auto seed = static_cast<std::uint64_t>(i % 10);  // threads share prompts
        auto sink = std::make_shared<WaitingSink>(1);
        const Submitted s = service->submit(request(seed), sink);
        ASSERT_TRUE(s.ok()) << s.failure.message;
        sinks[t].push_back(sink);
        switch (random.below(5)) {
          case 0:
            service->cancel(s.ticket);
            break;
          case 1:
            sink->wait();
            break;
          case 2:
            sink->wait_for_tokens(3);
            service->finish(s.ticket, 0);
            break;
          case 3:
            EXPECT_LE(service->call([](EngineView& e) { return e.active().size(); }).get(), 160u);
            break;
          default:
            service->snapshot();
        }
      }
      for (const auto& sink : sinks[t]) sink->wait();
    });
  for (std::thread& t : threads) t.join();
  service->stop();
  EXPECT_TRUE(service->idle());

  auto reference = Runtime::open(file_.path(), {.threads = 1, .kv_cache_bytes = 16 << 20});
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const Request r = request(seed);
    const auto alone = naive_generate(*reference.value(), r.prompt, alone_options(r));
    const std::vector<TokenId>& expected = alone.value().answers[0].tokens;
    for (const auto& of_thread : sinks)
      for (std::size_t i = seed; i < of_thread.size(); i += 10) {
        const std::vector<TokenId> ids = of_thread[i]->answers[0].ids();
        ASSERT_LE(ids.size(), expected.size());
        EXPECT_TRUE(std::equal(ids.begin(), ids.end(), expected.begin()));
        if (of_thread[i]->answers[0].finish == Finish::length) {
          EXPECT_EQ(ids, expected);
        }
      }
  }
}

TEST_F(ServiceTest, RefusesAtOnce) {
  auto service = start({.sequences_max = 1, .queue_max = 3});
  auto sink = std::make_shared<WaitingSink>(1);
  EXPECT_EQ(service->submit(request(1, 5000), sink).failure.kind, FailureKind::context_length);
  EXPECT_EQ(service->submit(request(1, 3000, 1090), sink).failure.kind, FailureKind::none);
  Request wide = request(1, 3000, 600);
  wide.choices = 2;
  EXPECT_EQ(start()->submit(std::move(wide), sink).failure.kind, FailureKind::kv_capacity);
  sink->wait_for_tokens(1);  // runs; the next three wait
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (int i = 0; i < 3; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>(1));
    EXPECT_TRUE(service->submit(request(2), sinks.back()).ok());
  }
  const Submitted full = service->submit(request(3), sink);
  EXPECT_EQ(full.failure.kind, FailureKind::queue_full);
  EXPECT_GT(full.failure.retry_after_s, 0u);
  service->drain();
  EXPECT_EQ(service->submit(request(4), sink).failure.kind, FailureKind::draining);
  for (const auto& s : sinks) s->wait();
  EXPECT_TRUE(sink->over());
  for (const auto& s : sinks) EXPECT_TRUE(s->result);
  const ServiceStats stats = service->snapshot();
  EXPECT_EQ(stats.failed[static_cast<int>(FailureKind::queue_full)], 1u);
  EXPECT_EQ(stats.failed[static_cast<int>(FailureKind::context_length)], 1u);
}

TEST_F(ServiceTest, ATenantCannotFillTheQueueAlone) {
  auto service = start({.sequences_max = 1, .queue_max = 8, .queue_max_per_tenant = 2});
  auto running = std::make_shared<WaitingSink>(1);
  service->submit(request(1, 60, 3000), running);
  running->wait_for_tokens(1);
  const auto submit = [&](const char* tenant) {
    Request r = request(2);
    r.kv.tenant = tenant;
    return service->submit(std::move(r), std::make_shared<WaitingSink>(1)).failure.kind;
  };
  EXPECT_EQ(submit("a"), FailureKind::none);
  EXPECT_EQ(submit("a"), FailureKind::none);
  EXPECT_EQ(submit("a"), FailureKind::queue_full);
  EXPECT_EQ(submit("b"), FailureKind::none);
}

TEST_F(ServiceTest, AFullQueueKeepsNobodyElseOut) {
  auto service = start({.sequences_max = 1, .queue_max = 4});
  auto running = std::make_shared<WaitingSink>(1);
  service->submit(request(1, 60, 3000), running);
  running->wait_for_tokens(1);
  const auto submit = [&](const char* client) {
    Request r = request(2);
    r.client = client;
    return service->submit(std::move(r), std::make_shared<WaitingSink>(1)).failure.kind;
  };
  for (int i = 0; i < 4; ++i) EXPECT_EQ(submit("a"), FailureKind::none);
  EXPECT_EQ(submit("a"), FailureKind::queue_full);
  for (const char* client : {"b", "c", "d", "e"}) {
    EXPECT_EQ(submit(client), FailureKind::none);
    EXPECT_EQ(submit(client), FailureKind::queue_full);
  }
  EXPECT_EQ(submit("f"), FailureKind::queue_full);  // twice as many: no more
}

TEST_F(ServiceTest, StopTellsEveryoneOnce) {
  auto service = start({.sequences_max = 2});
  std::vector<std::shared_ptr<WaitingSink>> sinks;
  for (std::uint64_t i = 0; i < 20; ++i) {
    sinks.push_back(std::make_shared<WaitingSink>(1));
    service->submit(request(i, 60, 2000), sinks.back());
  }
  sinks[0]->wait_for_tokens(2);
  service->stop();
  for (const auto& s : sinks) {
    ASSERT_TRUE(s->failure);
    EXPECT_EQ(s->failure->kind, FailureKind::draining);
  }
  EXPECT_FALSE(service->post([](EngineView&) {}));
  EXPECT_EQ(service->submit(request(1), sinks[0]).failure.kind, FailureKind::draining);
  service->stop();
}

TEST_F(ServiceTest, CallsLookAtTheCacheAndTheLog) {
  auto service = start();
  auto sink = std::make_shared<WaitingSink>(1);
  const Request r = request(7, 100);
  service->submit(request(7, 100), sink);
  sink->wait();
  const std::vector<BlockKey> keys = service->block_keys(r.prompt, r.kv);
  ASSERT_EQ(keys.size(), 6u);
  const auto seen = service
                        ->call([&](EngineView& e) {
                          const auto root = e.runtime.tenant_root("");
                          return e.runtime.cache().lookup(root.value(), r.prompt, keys);
                        })
                        .get();
  EXPECT_EQ(seen.tokens, 96u);
  EXPECT_EQ(sink->result->node, keys.back());
  auto why =
      service->call([](EngineView& e) { return e.log.explain("r7", e.runtime.cache().journal()); });
  EXPECT_EQ(why.get()->outcome, Outcome::miss);
  const ServiceStats stats = service->snapshot();
  EXPECT_EQ(stats.tokens_generated, 10u);
  EXPECT_EQ(stats.prompt_tokens, 100u);
  EXPECT_EQ(stats.first_token_seconds.count, 1u);
  EXPECT_EQ(stats.inter_token_seconds.count, 9u);
  EXPECT_EQ(stats.cache.tokens_queried, 100u);
  EXPECT_GT(stats.forward_seconds, 0);
  EXPECT_GE(stats.step_seconds, stats.forward_seconds + stats.sample_seconds);
}

}  // namespace
}  // namespace quire
