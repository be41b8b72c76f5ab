#include "engine/shared_cache.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/random.h"
#include "engine/service.h"
#include "engine/waiting_sink_testing.h"

namespace quire {
namespace {

Request house_request(std::uint64_t seed, std::size_t length, std::uint32_t tokens_max) {
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

// Two models of different shapes on one cache.
class SharedCacheTest : public ::testing::Test {
 protected:
  void start(std::uint64_t cache_bytes) {
    RuntimeOptions options{.threads = 2, .tokens_per_block = 16, .kv_cache_bytes = cache_bytes};
    auto made = SharedCache::make(options);
    ASSERT_TRUE(made.ok());
    shared_ = options.shared = made.value();
    for (std::size_t m = 0; m < 2; ++m) {
      auto runtime = Runtime::open(files_[m]->path(), options);
      ASSERT_TRUE(runtime.ok()) << runtime.error().message;
      auto service = Service::start(std::move(runtime.value()),
                                    {.step_tokens = 64, .numbers_from = std::uint64_t{m} << 40});
      ASSERT_TRUE(service.ok());
      services_[m] = std::move(service.value());
    }
  }
  std::vector<TokenId> alone(std::size_t m, const Request& r) {
    auto runtime = Runtime::open(files_[m]->path(), {.threads = 1, .kv_cache_bytes = 16 << 20});
    return naive_generate(*runtime.value(), r.prompt, alone_options(r)).value().answers[0].tokens;
  }
  std::shared_ptr<WaitingSink> submit(std::size_t m, const Request& r) {
    auto sink = std::make_shared<WaitingSink>(1);
    Request copy = house_request(r.sampling.seed, r.prompt.size(), r.tokens_max);
    EXPECT_TRUE(services_[m]->submit(std::move(copy), sink).ok());
    return sink;
  }
  std::uint32_t cached(std::size_t m, const Request& r) {
    const auto sink = submit(m, r);
    sink->wait();
    return sink->admission.cached_tokens;
  }

  std::unique_ptr<TinyFile> files_[2] = {
      std::make_unique<TinyFile>(TinyOptions{.layers = 2}),
      std::make_unique<TinyFile>(TinyOptions{.architecture = "gemma3", .layers = 3})};
  std::shared_ptr<SharedCache> shared_;
  std::unique_ptr<Service> services_[2];
};

// The cache is so small that each model alone fills it, and they take each other's room all the time.
TEST_F(SharedCacheTest, AnswersAreAsAloneWhereRoomIsShort) {
  start(std::uint64_t{9} << 20);
  std::vector<std::pair<Request, std::shared_ptr<WaitingSink>>> all[2];
  std::vector<std::thread> threads;
  for (std::size_t m = 0; m < 2; ++m)
    threads.emplace_back([&, m] {
      for (std::uint64_t i = 0; i < 24; ++i) {
        Request r = house_request(i % 8 + 100 * m, 300 + 50 * (i % 8), 24);
        auto sink = submit(m, r);
        all[m].emplace_back(std::move(r), std::move(sink));
      }
    });
  for (std::thread& t : threads) t.join();
  for (std::size_t m = 0; m < 2; ++m)
    for (auto& [request, sink] : all[m]) {
      sink->wait();
      EXPECT_EQ(sink->answers[0].ids(), alone(m, request)) << "model " << m;
    }
}

TEST_F(SharedCacheTest, WeightsLeaveAndComeBackAndTheCacheStays) {
  start(std::uint64_t{8} << 20);
  const Request r = house_request(5, 100, 8);
  const std::vector<TokenId> expected = alone(0, r);
  EXPECT_EQ(cached(0, r), 0u);
  ASSERT_TRUE(services_[0]->drop_weights());
  EXPECT_EQ(services_[0]->runtime().executor().weights().bytes, 0u);
  // A request that comes meanwhile waits, and the other model answers.
  const auto waiting = submit(0, r);
  const auto other = submit(1, house_request(6, 50, 8));
  other->wait();
  EXPECT_EQ(other->answers[0].ids().size(), 8u);
  EXPECT_FALSE(services_[0]->idle());
  ASSERT_TRUE(services_[0]->load_weights(2, {}).ok());
  waiting->wait();
  EXPECT_EQ(waiting->answers[0].ids(), expected);
  EXPECT_GE(cached(0, r), 96u);
}

TEST_F(SharedCacheTest, AModelThatIsHeldFinishesWhatRunsAndAdmitsNothing) {
  start(std::uint64_t{8} << 20);
  const auto running = submit(0, house_request(1, 20, 200));
  running->wait_for_tokens(2);
  services_[0]->hold(true);
  const auto late = submit(0, house_request(2, 20, 4));
  running->wait();
  EXPECT_EQ(running->answers[0].ids().size(), 200u);
  EXPECT_TRUE(services_[0]->drop_weights());  // nothing runs, though one waits
  EXPECT_TRUE(late->answers[0].tokens.empty());
  ASSERT_TRUE(services_[0]->load_weights(1, {}).ok());
  services_[0]->hold(false);
  late->wait();
  EXPECT_EQ(late->answers[0].ids(), alone(0, house_request(2, 20, 4)));
}

}  // namespace
}  // namespace quire
