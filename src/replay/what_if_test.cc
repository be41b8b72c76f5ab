#include "replay/what_if.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace quire {
namespace {

constexpr StepCosts kCosts{.step = 1e-3, .prompt_token = 1e-4, .answer_token = 1e-4};

// People who take turns in conversations: each turn begins with all that was said before.
AskedTrace talks(std::uint32_t requests, std::uint64_t seed, Nanoseconds between) {
  Random random(seed);
  AskedTrace trace;
  std::vector<std::vector<std::uint64_t>> said(12);
  for (std::uint64_t r = 1; r <= requests; ++r) {
    std::vector<std::uint64_t>& keys = said[random.below(said.size())];
    if (keys.size() > 60) keys.clear();
    for (std::uint64_t n = 1 + random.below(6); n-- > 0;) keys.push_back(mix64(random.next()) | 1);
    Ask ask{.number = r,
            .arrival = static_cast<Nanoseconds>(r) * between,
            .prompt_tokens = static_cast<std::uint32_t>(keys.size()) * 32 + 5,
            .answer_tokens = 40,
            .piece = 32};
    keys.push_back(mix64(random.next()) | 1);  // the end of the prompt, and the answer
    keys.push_back(mix64(random.next()) | 1);
    ask.keys = keys;
    keys.pop_back();
    ask.keyed_tokens = static_cast<std::uint32_t>(ask.keys.size()) * 32;
    trace.asks.push_back(std::move(ask));
  }
  return trace;
}

VirtualWorkerOptions with(std::uint64_t blocks) {
  return {.capacity_blocks = blocks, .costs = kCosts};
}

TEST(VirtualWorker, TakesTheTimeThatItsStepsCost) {
  const Ask one{.number = 1, .prompt_tokens = 1000, .answer_tokens = 11};
  const auto w = what_if({&one, 1}, with(1000));
  ASSERT_TRUE(w.ok()) << w.error().message;
  // Two steps read the prompt; the first token comes with the second. Ten more steps.
  EXPECT_EQ(w.value().steps, 12u);
  EXPECT_NEAR(w.value().first_token_s.p50, 2 * 1e-3 + 1000 * 1e-4, 1e-9);
  EXPECT_NEAR(w.value().token_s.p50, 1.1e-3, 1e-9);
  EXPECT_EQ(w.value().answer_tokens, 11u);
}

TEST(VirtualWorker, TheNextTurnHitsPromptAndAnswer) {
  const AskedTrace trace = talks(200, 1, 1'000'000'000);
  const auto w = what_if(trace.asks, with(100000));
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w.value().requests, 200u);
  EXPECT_EQ(w.value().refused, 0u);
  // Oracle: a set of chains, without time. The answer's second block is never full.
  std::uint64_t hits = 0;
  std::vector<std::vector<std::uint64_t>> known;
  for (const Ask& a : trace.asks) {
    std::size_t best = 0;
    for (const auto& k : known) {
      const std::size_t most = std::min<std::size_t>(k.size(), a.prompt_tokens / 32);
      std::size_t n = 0;
      while (n < most && k[n] == a.keys[n]) ++n;
      best = std::max(best, n);
    }
    hits += best;
    std::vector<std::uint64_t> left = a.keys;
    left.resize((a.prompt_tokens + a.answer_tokens - 1) / 32);
    known.push_back(std::move(left));
  }
  EXPECT_EQ(w.value().hit_blocks, hits);
  EXPECT_GT(hits, 500u);
}

TEST(VirtualWorker, LessMemoryHitsLessAndATierGivesItBack) {
  const AskedTrace trace = talks(400, 2, 300'000'000);
  const auto all = what_if(trace.asks, with(100000)), some = what_if(trace.asks, with(150));
  ASSERT_TRUE(all.ok() && some.ok());
  EXPECT_LT(some.value().hit_blocks, all.value().hit_blocks / 2);
  EXPECT_GT(some.value().first_token_s.mean, all.value().first_token_s.mean);
  EXPECT_GT(some.value().evictions[static_cast<std::size_t>(Reason::evicted_capacity)], 0u);
  VirtualWorkerOptions tiered = with(150);
  tiered.tiers = {{.shared = false, .blocks = 100000, .first_byte_s = 1e-5, .blocks_per_s = 1e5}};
  const auto disk = what_if(trace.asks, tiered);
  ASSERT_TRUE(disk.ok());
  EXPECT_GT(disk.value().hit_tokens.disk, 0u);
  EXPECT_EQ(disk.value().hit_tokens.remote, 0u);
  EXPECT_GT(disk.value().hit_blocks, some.value().hit_blocks + all.value().hit_blocks / 4);
  EXPECT_LT(disk.value().first_token_s.mean, some.value().first_token_s.mean);
  // A tier that is slower than computing serves nothing.
  tiered.tiers[0].blocks_per_s = 1;
  const auto slow = what_if(trace.asks, tiered);
  ASSERT_TRUE(slow.ok());
  EXPECT_LT(slow.value().hit_tokens.disk, disk.value().hit_tokens.disk / 10);
}

TEST(VirtualWorker, TheSameAskedTwiceIsTheSame) {
  const AskedTrace trace = talks(300, 3, 20'000'000);
  const auto once = what_if(trace.asks, with(400)), again = what_if(trace.asks, with(400));
  ASSERT_TRUE(once.ok() && again.ok());
  EXPECT_EQ(once.value().hit_tokens.memory, again.value().hit_tokens.memory);
  EXPECT_EQ(once.value().seconds, again.value().seconds);
  EXPECT_EQ(once.value().first_token_s.p99, again.value().first_token_s.p99);
  // Whoever comes faster than answers are made waits.
  EXPECT_GT(once.value().queue_s.p99, 0.0);
}

TEST(VirtualWorker, RefusesNonsenseAndWhatDoesNotFit) {
  const Ask large{.number = 1, .prompt_tokens = 5000, .answer_tokens = 1};
  const auto w = what_if({&large, 1}, with(20));
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w.value().refused, 1u);
  EXPECT_FALSE(w.value().why_refused.empty());
  EXPECT_FALSE(what_if({}, with(0)).ok());
  EXPECT_FALSE(what_if({}, {.capacity_blocks = 10}).ok());  // no costs
  VirtualWorkerOptions odd = with(10);
  odd.block_size = 33;
  EXPECT_FALSE(what_if({}, odd).ok());
  // Costs that would run over every clock.
  const Ask some{.number = 1, .prompt_tokens = 100, .answer_tokens = 100};
  VirtualWorkerOptions dear = with(100);
  dear.costs.step = 1e6;
  EXPECT_TRUE(what_if({&some, 1}, dear).ok());
}

TEST(Asks, OfOurTracesAndOfMooncakes) {
  const auto own = parse_asks(
      R"({"quire_trace":1,"block_size":32,"block_bytes":10,"cache_bytes":100,"capacity_blocks":10,"format":"f16","evictor":"odds","layers":[{"layers":2,"kv_heads":2,"key_dim":64,"value_dim":64,"window":0}],"step_tokens":256}
{"e":"attach","t":5,"r":2,"arrived":4000,"prompt":40,"hit":0,"reason":"hit","keys":["00000000000000ff"]}
{"e":"attach","t":5,"r":7,"arrived":3000,"prompt":40,"hit":32,"reason":"hit","keys":["00000000000000ff"]}
{"e":"store","t":6,"r":2,"b":1,"k":"00000000000000aa"}
{"e":"end","t":9,"r":2,"reason":"finished","generated":60,"choices":2,"queue_s":0,"first_token_s":0.5,"decode_s":1}
{"e":"costs","step_ms":2,"prompt_token_us":10}
)",
      "test");
  ASSERT_TRUE(own.ok()) << own.error().message;
  const AskedTrace& t = own.value();
  ASSERT_EQ(t.asks.size(), 2u);
  EXPECT_EQ(t.asks[0].number, 7u);
  EXPECT_EQ(t.asks[1].arrival, 1000);
  EXPECT_EQ(t.asks[1].answer_tokens, 30u);
  EXPECT_EQ(t.asks[1].keyed_tokens, 64u);
  EXPECT_DOUBLE_EQ(t.costs.step, 2e-3);
  const auto a = made_up_tokens(t.asks[0]), b = made_up_tokens(t.asks[1]);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 32, b.begin()));
  EXPECT_NE(a[32], b[32]);
  EXPECT_EQ(b.size(), 70u);
  const auto bytes = block_bytes_as(t.recorded, "f16", 32);
  ASSERT_TRUE(bytes.ok());
  EXPECT_EQ(bytes.value(), 2u * 2 * 2 * 64 * 32 * 2);

  const auto mooncake = parse_asks(
      "{\"timestamp\":7,\"input_length\":600,\"output_length\":3,\"hash_ids\":[0,1]}\n"
      "{\"timestamp\":9,\"input_length\":520,\"output_length\":3,\"hash_ids\":[0,2]}\n",
      "test");
  ASSERT_TRUE(mooncake.ok());
  const auto c = made_up_tokens(mooncake.value().asks[0]),
             d = made_up_tokens(mooncake.value().asks[1]);
  EXPECT_TRUE(std::equal(c.begin(), c.begin() + 512, d.begin()));
  EXPECT_NE(c[512], d[512]);
  EXPECT_EQ(mooncake.value().asks[1].arrival, 2'000'000);
  EXPECT_FALSE(parse_asks("", "test").ok());
  EXPECT_FALSE(parse_asks("{\"timestamp\":-1}", "test").ok());
}

}  // namespace
}  // namespace quire
