// The engine over a tier whose time is the simulator's: what is stored comes back, late, damaged or not
// at all, and answers stay the same.
#include <gtest/gtest.h>

#include "sim/toy_engine.h"

namespace quire {
namespace {

constexpr std::uint32_t kPrompt = 200;

Request request(std::uint32_t seed, const std::string& tenant = {}) {
  Request r{.tokens_max = 6};
  for (std::uint32_t i = 0; i < kPrompt; ++i) r.prompt.push_back('a' + (seed * 7 + i * i) % 26);
  r.kv.tenant = tenant;
  return r;
}

ToyEngineOptions with_tier(const MemoryTierOptions& tier, TierWrite write = TierWrite::automatic) {
  ToyEngineOptions o{.cache_bytes = 2 << 20};
  o.tiers = {tier};
  o.tier_write = write;
  return o;
}

class Toys {
 public:
  explicit Toys(const ToyEngineOptions& options) : toy(options, {}) {}

  std::shared_ptr<AnswerLog> start(Request r) {
    auto log = std::make_shared<AnswerLog>(r.choices);
    EXPECT_EQ(toy.submit(std::move(r), log, JobId{++jobs_}).failure.kind, FailureKind::none);
    return log;
  }
  std::shared_ptr<AnswerLog> ask(Request r) {
    auto log = start(std::move(r));
    EXPECT_TRUE(toy.run());
    return log;
  }
  // What was written is there, and memory is empty.
  void forget() {
    for (int i = 0; i < 2000; ++i) {
      toy.clock().advance(10'000'000);
      toy.step();
    }
    toy.cache().clear(true);
    EXPECT_EQ(toy.cache().stats().cached_blocks, 0u);
  }
  static std::vector<TokenId> tokens(const AnswerLog& log) {
    std::vector<TokenId> all;
    for (const Choice& c : log.answers[0].tokens) all.push_back(c.token);
    return all;
  }

  ToyEngine toy;

 private:
  std::uint64_t jobs_ = 0;
};

constexpr std::uint32_t kWhole = kPrompt / kToyBlock * kToyBlock;

TEST(ToyTier, WhatWasStoredComesBack) {
  for (const ToyModel model : {ToyModel::full, ToyModel::windows}) {
    ToyEngineOptions o = with_tier({}, TierWrite::always);
    o.model = model;
    Toys toys(o);
    const auto first = toys.ask(request(1));
    EXPECT_EQ(first->admission->loaded_tokens, 0u);
    toys.forget();
    const auto again = toys.ask(request(1));
    EXPECT_EQ(again->admission->loaded_tokens, kWhole);
    EXPECT_EQ(again->admission->cached_tokens, kWhole);
    EXPECT_EQ(again->admission->reason, Reason::block_partial);
    EXPECT_EQ(Toys::tokens(*again), Toys::tokens(*first));
    toys.toy.cache().check();
    EXPECT_EQ(toys.toy.cache().landings(), 0u);
    const auto resident = toys.ask(request(1));
    EXPECT_EQ(resident->admission->loaded_tokens, 0u);
    EXPECT_EQ(resident->admission->cached_tokens, kWhole);
  }
}

TEST(ToyTier, RequestsShareABlockThatArrives) {
  Toys toys(with_tier({.first_byte_ns = 20'000, .bytes_per_s = 1e9}));
  const auto first = toys.ask(request(2));
  toys.forget();
  std::vector<std::shared_ptr<AnswerLog>> logs;
  for (int i = 0; i < 4; ++i) logs.push_back(toys.start(request(2)));
  ASSERT_TRUE(toys.toy.run());
  std::uint32_t loaded = 0;
  for (const auto& log : logs) {
    EXPECT_EQ(Toys::tokens(*log), Toys::tokens(*first));
    EXPECT_EQ(log->admission->cached_tokens, kWhole);
    loaded += log->admission->loaded_tokens;
  }
  EXPECT_EQ(loaded, kWhole);
  EXPECT_EQ(toys.toy.engine().stats().tiers.at(0).up.blocks, kPrompt / kToyBlock);
}

TEST(ToyTier, TenantsAndSaltsFindTheirOwn) {
  Toys toys(with_tier({}));
  toys.ask(request(3, "a"));
  toys.forget();
  EXPECT_EQ(toys.ask(request(3, "b"))->admission->cached_tokens, 0u);
  EXPECT_EQ(toys.ask(request(3))->admission->cached_tokens, 0u);
  Request salted = request(3, "a");
  salted.kv.salt = "s";
  EXPECT_EQ(toys.ask(std::move(salted))->admission->cached_tokens, 0u);
  Request memory_only = request(3, "a");
  memory_only.kv.disk = false;
  EXPECT_EQ(toys.ask(std::move(memory_only))->admission->cached_tokens, 0u);
  toys.forget();
  EXPECT_EQ(toys.ask(request(3, "a"))->admission->loaded_tokens, kWhole);
}

TEST(ToyTier, NothingComesOfATierThatFails) {
  for (const MemoryTierOptions& tier :
       {MemoryTierOptions{.lose_chance = 1}, MemoryTierOptions{.corrupt_chance = 1}}) {
    Toys toys(with_tier(tier));
    const auto first = toys.ask(request(4));
    toys.forget();
    const auto again = toys.ask(request(4));
    EXPECT_EQ(Toys::tokens(*again), Toys::tokens(*first));
    EXPECT_EQ(again->admission->loaded_tokens, 0u);
    EXPECT_EQ(again->admission->reason,
              tier.corrupt_chance > 0 ? Reason::load_failed : Reason::cleared);
  }
}

TEST(ToyTier, ATierThatIsDownIsNotWaitedFor) {
  Toys toys(with_tier({}));
  const auto first = toys.ask(request(5));
  toys.forget();
  toys.toy.tiers()[0]->set_down(true);
  EXPECT_EQ(Toys::tokens(*toys.ask(request(5))), Toys::tokens(*first));
}

// It stops answering in the middle: the prompt is computed, and the memory comes back when it ends.
TEST(ToyTier, ATierThatStallsIsNotWaitedFor) {
  Toys toys(with_tier({.first_byte_ns = 1'000'000, .bytes_per_s = 2e4}));  // a block takes 0.3 s
  const auto first = toys.ask(request(6));
  for (int i = 0; i < 60; ++i) toys.forget();
  const Nanoseconds start = toys.toy.clock().now();
  const auto again = toys.ask(request(6));
  EXPECT_EQ(Toys::tokens(*again), Toys::tokens(*first));
  EXPECT_LT(toys.toy.clock().now() - start, 400'000'000);
  for (int i = 0; i < 60; ++i) toys.forget();
  EXPECT_EQ(toys.toy.cache().landings(), 0u);
  toys.toy.cache().check();
}

TEST(ToyTier, WhoLeavesWhileItLoadsLeavesNothingBehind) {
  Toys toys(with_tier({.bytes_per_s = 1e8}));
  toys.ask(request(7));
  toys.forget();
  const auto log = toys.start(request(7));
  for (int i = 0; i < 12 && toys.toy.cache().landings() == 0; ++i) {
    toys.toy.step();
    toys.toy.clock().advance(100'000);
  }
  EXPECT_GT(toys.toy.cache().landings(), 0u);
  toys.toy.engine().cancel(JobId{2});
  EXPECT_TRUE(log->failure);
  toys.toy.cache().check();
  toys.forget();
  EXPECT_EQ(toys.toy.cache().landings(), 0u);
  EXPECT_EQ(toys.toy.cache().stats().referenced_blocks, 0u);
  toys.toy.cache().check();
}

TEST(ToyTier, EachPolicyWritesWhatItSays) {
  const auto written = [](TierWrite write, bool hit, bool evict) {
    Toys toys(with_tier({}, write));
    toys.ask(request(8));
    if (hit) toys.ask(request(8));
    if (evict) toys.toy.cache().resize(64 << 10);
    toys.toy.step();
    toys.toy.clock().advance(1'000'000'000);
    toys.toy.step();
    return toys.toy.tiers()[0]->stats().records;
  };
  EXPECT_GE(written(TierWrite::automatic, false, false), kPrompt / kToyBlock);
  EXPECT_GE(written(TierWrite::always, false, false), kPrompt / kToyBlock);
  EXPECT_EQ(written(TierWrite::never, true, true), 0u);
  EXPECT_EQ(written(TierWrite::reused, false, false), 0u);
  EXPECT_GE(written(TierWrite::reused, true, false), kPrompt / kToyBlock);
  EXPECT_EQ(written(TierWrite::evicted, true, false), 0u);
  EXPECT_GT(written(TierWrite::evicted, false, true), 0u);
}

// A slower tier that machines share stands behind the first. It has what the first one lost, and what a
// request may not keep on the disk.
TEST(ToyTier, AStoreBehindTheDiskHasWhatTheDiskLost) {
  ToyEngineOptions o = with_tier({.bytes_per_s = 1e9}, TierWrite::always);
  o.tiers.push_back({.traits = {.name = "remote", .shared = true, .durable = true},
                     .bytes_per_s = 1e8,
                     .secret = DeploymentSecret::random()});
  Toys toys(o);
  const auto first = toys.ask(request(10));
  toys.forget();
  const auto near = toys.ask(request(10));
  EXPECT_EQ(near->admission->loaded_tokens, kWhole);
  EXPECT_EQ(near->admission->remote_tokens, 0u);
  toys.toy.tiers()[0]->clear();
  toys.forget();
  Request local = request(10);
  local.kv.remote = false;
  EXPECT_EQ(toys.ask(std::move(local))->admission->loaded_tokens, 0u);
  toys.forget();
  const auto far = toys.ask(request(10));
  EXPECT_EQ(far->admission->remote_tokens, kWhole);
  EXPECT_EQ(Toys::tokens(*far), Toys::tokens(*first));
}

// Blocks that could not be written are offered again.
TEST(ToyTier, WhatWasLostIsWrittenLater) {
  Toys toys(with_tier({}));
  toys.toy.tiers()[0]->set_down(true);
  toys.ask(request(9));
  toys.toy.clock().advance(1'000'000'000);
  toys.toy.step();
  EXPECT_EQ(toys.toy.tiers()[0]->stats().records, 0u);
  toys.toy.tiers()[0]->set_down(false);
  toys.ask(request(9));  // a hit
  toys.toy.clock().advance(1'000'000'000);
  toys.toy.step();
  EXPECT_GE(toys.toy.tiers()[0]->stats().records, kPrompt / kToyBlock);
}

}  // namespace
}  // namespace quire
