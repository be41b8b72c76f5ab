#include "replay/cache_replay.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace quire {
namespace {

constexpr std::uint32_t kBlock = 32;

// A trace as a server with room for everything would write it: requests one after another, each a
// continuation of an earlier one or new.
CacheEvents conversations(std::uint32_t requests, std::uint64_t seed) {
  Random random(seed);
  CacheEvents trace;
  trace.cache = {.block_size = kBlock,
                 .block_bytes = 1 << 20,
                 .cache_bytes = std::uint64_t{100000} << 20,
                 .capacity_blocks = 100000,
                 .evictor = "lru"};
  std::vector<std::vector<std::uint64_t>> chains;
  Nanoseconds now = 1000;
  std::uint64_t fresh = 1;
  for (std::uint64_t r = 1; r <= requests; ++r) {
    std::vector<std::uint64_t> keys;
    if (!chains.empty() && random.chance(0.6)) keys = chains[random.below(chains.size())];
    const std::size_t hit = keys.size();
    for (std::uint64_t n = 1 + random.below(5); n-- > 0;) keys.push_back(mix64(fresh++));
    CacheEvent attach{.kind = CacheEvent::Kind::attach, .time = now += 1000000, .request = r};
    attach.prompt_tokens = static_cast<std::uint32_t>(keys.size()) * kBlock + 7;
    attach.hit_tokens = static_cast<std::uint32_t>(hit) * kBlock;
    attach.keys = keys;
    trace.events.push_back(attach);
    keys.push_back(mix64(fresh++));  // one block of the answer
    for (std::size_t b = hit; b < keys.size(); ++b)
      trace.events.push_back({.kind = CacheEvent::Kind::store,
                              .time = now += 1000000,
                              .request = r,
                              .key = keys[b],
                              .block = static_cast<std::uint32_t>(b)});
    CacheEvent end{.kind = CacheEvent::Kind::end, .time = now += 1000000, .request = r};
    end.reason = "finished";
    end.first_token_s = 0.001 * static_cast<double>(attach.prompt_tokens - attach.hit_tokens);
    trace.events.push_back(end);
    chains.push_back(std::move(keys));
  }
  return trace;
}

TEST(CacheReplay, AtTheRecordedSettingsHitsAreTheRecordedOnes) {
  const CacheEvents trace = conversations(300, 1);
  const auto r = replay_cache(trace, {});
  ASSERT_TRUE(r.ok()) << r.error().message;
  EXPECT_EQ(r.value().requests, 300u);
  EXPECT_EQ(r.value().differing, 0u);
  EXPECT_EQ(r.value().hit_blocks, r.value().recorded_hit_blocks);
  EXPECT_GT(r.value().hit_blocks, 300u);
  EXPECT_NEAR(r.value().token_s, 0.001, 1e-4);
}

TEST(CacheReplay, ASmallerCacheHitsLessAndTakesLonger) {
  const CacheEvents trace = conversations(300, 2);
  const auto all = replay_cache(trace, {}), some = replay_cache(trace, {.capacity_blocks = 200});
  ASSERT_TRUE(all.ok() && some.ok());
  EXPECT_LT(some.value().hit_blocks, all.value().hit_blocks);
  EXPECT_GT(some.value().hit_blocks, 0u);
  EXPECT_GT(some.value().first_token_s, all.value().first_token_s);
  EXPECT_GT(some.value().evictions[static_cast<std::size_t>(Reason::evicted_capacity)], 0u);
}

TEST(CacheReplay, TenantsAndSaltsDoNotShare) {
  CacheEvents trace = conversations(2, 3);
  for (std::size_t salted = 0; salted < 3; ++salted) {
    CacheEvents copy = trace;
    CacheEvent again = copy.events.front();
    again.request = 99;
    again.time = copy.events.back().time + 1;
    if (salted == 1) again.salt = "abc";
    if (salted == 2) again.tenant = "abc";
    copy.events.push_back(again);
    const auto before = replay_cache(trace, {}), after = replay_cache(copy, {});
    ASSERT_TRUE(before.ok() && after.ok());
    const std::uint64_t more = after.value().hit_blocks - before.value().hit_blocks;
    EXPECT_EQ(more, salted == 0 ? again.keys.size() : 0u);
  }
}

TEST(CacheReplay, RefusesWhatItCannotHold) {
  CacheEvents trace = conversations(1, 4);
  EXPECT_FALSE(replay_cache(trace, {.capacity_blocks = std::uint64_t{1} << 40}).ok());
  EXPECT_FALSE(replay_cache(trace, {.evictor = "clairvoyant"}).ok());
  trace.cache.block_size = 33;
  EXPECT_FALSE(replay_cache(trace, {}).ok());
}

TEST(CacheEvents, LinesAreReadBackAndWrongOnesNamed) {
  const auto head = parse_traced_cache(
      R"({"quire_trace":1,"block_size":32,"block_bytes":10,"cache_bytes":100,"capacity_blocks":10,"format":"f16","evictor":"odds"})");
  ASSERT_TRUE(head.ok());
  EXPECT_EQ(head.value().capacity_blocks, 10u);
  EXPECT_FALSE(parse_traced_cache(R"({"timestamp":1})").ok());
  const auto attach = parse_cache_event(
      R"({"e":"attach","t":5,"r":2,"arrived":4,"prompt":70,"hit":32,"reason":"hit","keys":["00000000000000ff","0123456789abcdef"],"tenant":"x"})");
  ASSERT_TRUE(attach.ok());
  EXPECT_EQ(attach.value().keys[0], 255u);
  EXPECT_EQ(attach.value().tenant, "x");
  EXPECT_FALSE(parse_cache_event(R"({"e":"store","k":"xyz"})").ok());
  EXPECT_FALSE(parse_cache_event(R"({"e":"attach","prompt":99999999999})").ok());
  EXPECT_FALSE(parse_cache_event("[1]").ok());
}

}  // namespace
}  // namespace quire
