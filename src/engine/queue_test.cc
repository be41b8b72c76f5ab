// Ten thousand requests wait: the order stays fair, and a step costs hardly more for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/random.h"
#include "base/sanitized.h"
#include "engine/engine_testing.h"

namespace quire {
namespace {

struct OrderSink final : RequestSink {
  OrderSink(std::uint32_t number, std::vector<std::uint32_t>& into) : me(number), order(into) {}
  void admitted(const Admitted& a) override {
    order.push_back(me);
    cached = a.cached_tokens;
  }
  void token(std::uint32_t, const Choice&) override {}
  void finished(std::uint32_t, Finish) override {}
  void done(const Done&) override {}
  void failed(const Failure& f) override { EXPECT_EQ(f.kind, FailureKind::draining) << f.message; }

  std::uint32_t me, cached = 0;
  std::vector<std::uint32_t>& order;
};

std::vector<TokenId> letters(Random& random, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& t : tokens) t = 'a' + static_cast<TokenId>(random.below(26));
  return tokens;
}

class QueueTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kMany = kSanitized ? 1000 : 10000;

  void submit(std::vector<TokenId> prompt, std::uint32_t tokens_max, std::uint32_t choices = 1,
              std::string tenant = "") {
    Request r;
    r.prompt = std::move(prompt);
    r.tokens_max = tokens_max;
    r.ignore_end = true;
    r.choices = choices;
    r.kv.tenant = std::move(tenant);
    auto sink = std::make_shared<OrderSink>(static_cast<std::uint32_t>(sinks.size()), order);
    PreparedJob p = prepare_job(*e.runtime, e.options, std::move(r), sink);
    ASSERT_TRUE(p.job) << p.failure.message;
    p.job->id = static_cast<JobId>(sinks.size() + 1);
    p.job->submitted = e.clock.now();
    e.engine->submit(std::move(p.job));
    sinks.push_back(std::move(sink));
  }

  Random random{1};
  std::vector<std::shared_ptr<OrderSink>> sinks;
  std::vector<std::uint32_t> order;  // of admission
  TinyEngine e{{.layers = 1}, {.tokens_per_block = 16}, {.step_tokens = 256, .sequences_max = 16}};
};

TEST_F(QueueTest, HitsGoFirstAndNobodyIsPassedForEver) {
  std::vector<std::vector<TokenId>> hot;
  for (int i = 0; i < 4; ++i) hot.push_back(letters(random, 64));
  for (std::uint32_t i = 0; i < kMany; ++i) {
    std::vector<TokenId> prompt = letters(random, 20);
    if (i % 3 == 0) {
      const std::vector<TokenId>& head = hot[random.below(hot.size())];
      prompt.insert(prompt.begin(), head.begin(), head.end());
    }
    submit(std::move(prompt), 1);
  }
  e.run();
  ASSERT_EQ(order.size(), kMany);
  const std::uint32_t passes_max = SchedulerOptions{}.passes_max;
  std::set<std::uint32_t> waiting;
  for (std::uint32_t i = 0; i < kMany; ++i) waiting.insert(i);
  std::uint64_t passes = 0, hits = 0;
  for (std::uint32_t at = 0; at < kMany; ++at) {
    const std::uint32_t who = order[at];
    // Those who wait for a prefix that another computes let themselves be passed; nobody else.
    ASSERT_LE(at, who + passes_max + SchedulerOptions{}.window) << "request " << who;
    passes += static_cast<std::uint64_t>(std::distance(waiting.begin(), waiting.find(who)) > 0);
    waiting.erase(who);
    hits += sinks[who]->cached >= 64;
  }
  EXPECT_GT(passes, kMany / 10);            // the order is by hits
  EXPECT_GT(hits, kMany / 3 - kMany / 50);  // and they are had
}

// Prompts that are shorter than the rest of a long one come without end, more than are read. They go first,
// but not for ever.
TEST(Queue, ALongPromptIsReadThoughShorterOnesKeepComing) {
  TinyEngine e(tiny(), {}, {.step_tokens = 128, .sequences_max = 8});
  const auto sink = e.submit(request(text_of(1000, 1), 1));
  std::vector<std::shared_ptr<MemorySink>> others;
  int steps = 0;
  for (; !sink->over() && steps < 300; ++steps) {
    std::erase_if(others, [](const auto& other) { return other->over(); });
    while (others.size() < 12) others.push_back(e.submit(request(text_of(300, 2 + e.jobs), 1)));
    EXPECT_TRUE(e.engine->step());
  }
  EXPECT_TRUE(sink->result) << "it is never read";
  EXPECT_LT(steps, 100);
  e.run();
  e.expect_empty();
}

TEST_F(QueueTest, AStepCostsHardlyMoreWhenTenThousandWait) {
  // What a step takes besides computing, while sixteen decode and the rest wait for room.
  const auto other_us = [&](std::uint32_t steps) {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const ServiceStats before = e.engine->stats();
      for (std::uint32_t s = 0; s < steps; ++s) EXPECT_TRUE(e.engine->step());
      const ServiceStats& after = e.engine->stats();
      best = std::min(best, 1e6 / steps *
                                ((after.step_seconds - before.step_seconds) -
                                 (after.forward_seconds - before.forward_seconds) -
                                 (after.sample_seconds - before.sample_seconds)));
    }
    return best;
  };
  // Fifteen run, and who comes first of each tenant is too wide to join them, so that every step
  // asks for all in the windows of all tenants.
  for (int i = 0; i < 15; ++i) submit(letters(random, 40), 3000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(e.engine->step());
  const double alone = other_us(100);
  const auto wait = [&](std::uint32_t until) {
    while (sinks.size() < until)
      submit(letters(random, 200), 100, 2, std::to_string(sinks.size() % 20));
  };
  wait(1000);
  const double few = other_us(100);
  wait(kMany);
  double many = other_us(100);
  for (int again = 0; again < 2 && many >= 2 * few + 50; ++again)  // others' work is no part of it
    many = std::min(many, other_us(100));
  EXPECT_EQ(e.engine->stats().requests_running, 15u);
  RecordProperty("alone_us", std::to_string(alone));
  RecordProperty("few_us", std::to_string(few));
  RecordProperty("many_us", std::to_string(many));
  EXPECT_LT(many, 2 * few + 50);
  // A step of a model worth serving takes 10,000 and more.
  if (!kSanitized) {
    EXPECT_LT(many, 1000);
  }
}

}  // namespace
}  // namespace quire
