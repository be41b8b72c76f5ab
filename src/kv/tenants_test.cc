// Tenants: shares, quotas, pins and leases.
#include "kv/tenants.h"

#include <algorithm>
#include <map>
#include <string>

#include "base/random.h"
#include "kv/cache_testing.h"
#include "kv/core.h"

namespace quire {
namespace {

class TenantsTest : public CacheTest {
 protected:
  static constexpr std::uint64_t kBudget = 1 << 18;

  void SetUp() override { start_with({}); }
  void start_with(CacheOptions o) { start({toy_group(GroupKind::full, 1, 2)}, kBudget, o); }

  RootId of(const std::string& tenant) {
    RootIdentity id;
    id.tenant = tenant;
    return cache->root(id, geometry).value();
  }
  Sequence run_as(const std::string& tenant, TokenId first, std::size_t count) {
    root = of(tenant);
    Sequence s = open({.token_capacity = static_cast<std::uint32_t>(count) + 64});
    cache->attach(s, tokens_from(first, count));
    prefill(s);
    return s;
  }
  std::uint64_t bytes(const std::string& tenant) const { return cache->tenant(tenant).bytes; }
  // Prompts without end, each of its own.
  void flood(const std::string& tenant, int prompts) {
    for (int i = 0; i < prompts; ++i) run_as(tenant, next_ += 10'000, 40).close();
  }
  // What so many tokens may take, rows beside sealed blocks and slabs in part included.
  std::uint64_t room_for(std::size_t tokens) const {
    std::uint64_t sum = 0;
    const Arena& arena = cache->core().arena;
    for (const LayerGroup& g : geometry.groups) {
      const SizeClass c = *arena.find_class(geometry.block_bytes(g));
      sum += (tokens / kBlock + 2) * arena.class_bytes(c) + arena.slab_bytes(c);
    }
    return sum;
  }
  TokenId next_ = 1'000'000;
};

TEST_F(TenantsTest, OneAloneMayHaveEverything) {
  flood("greedy", 2000);
  EXPECT_GT(bytes("greedy"), kBudget * 9 / 10);
}

TEST_F(TenantsTest, AFloodLeavesTheOthersTheirShare) {
  for (TokenId i = 0; i < 10; ++i) run_as("modest", 1000 * i, 40).close();
  const std::uint64_t before = bytes("modest");
  ASSERT_LT(before, kBudget / 2);
  flood("greedy", 3000);
  EXPECT_EQ(bytes("modest"), before);
  root = of("modest");
  Sequence s = open();
  EXPECT_EQ(cache->attach(s, tokens_from(0, 40)).tokens, 39u);
}

TEST_F(TenantsTest, ANewcomerGetsItsShare) {
  flood("greedy", 3000);
  flood("modest", 3000);
  EXPECT_GT(bytes("modest"), kBudget * 4 / 10);
  flood("greedy", 3000);
  EXPECT_GT(bytes("modest"), kBudget * 4 / 10);
  flood("third", 3000);
  EXPECT_GT(bytes("third"), kBudget * 3 / 10);
}

TEST_F(TenantsTest, OtherSizesOfBlocksCountToo) {
  for (TokenId i = 0; i < 10; ++i) run_as("modest", 1000 * i, 40).close();
  const std::uint64_t before = bytes("modest");
  const Geometry wide = toy_geometry({toy_group(GroupKind::full, 3, 8)}, kBlock);
  geometry = wide;
  flood("greedy", 2000);
  EXPECT_EQ(bytes("modest"), before);
  EXPECT_GT(bytes("greedy"), before);
}

TEST_F(TenantsTest, WhatCouldNotGoOnOtherwiseMayTakeShares) {
  for (TokenId i = 0; i < 200; ++i) run_as("modest", 1000 * i, 40).close();
  ASSERT_GT(bytes("modest"), kBudget / 4);
  root = of("greedy");
  Sequence s = open({.token_capacity = 1 << 20});
  cache->attach(s, tokens_from(5'000'000, 8));
  bool refused = false;
  while (bytes("modest") > kBudget / 8) {  // it grows until only the other's share is left
    const StepNeed need{&s, s.length() == 0 ? 8u : kBlock};
    if (!cache->reserve({&need, 1}).ok()) {
      if (!refused) {
        EXPECT_GT(bytes("modest"), kBudget / 4);
      }
      refused = true;
      ASSERT_TRUE(cache->waive_shares());
      EXPECT_FALSE(cache->waive_shares());  // once will do
    }
    Result<Reservation> r = cache->reserve({&need, 1});
    ASSERT_TRUE(r.ok()) << r.error().message;
    std::vector<TokenId> all(s.tokens().begin(), s.tokens().end());
    while (all.size() < s.length() + need.count) all.push_back(7);
    r.value().commit(0, std::span(all).subspan(s.length(), need.count));
  }
  EXPECT_TRUE(refused);
}

TEST_F(TenantsTest, AQuotaHoldsAndItsTenantEvictsItsOwn) {
  run_as("modest", 1, 40).close();
  const std::uint64_t before = bytes("modest");
  const std::uint64_t quota = kBudget / 8;
  ASSERT_TRUE(cache->set_limits("greedy", {.bytes = quota}).ok());
  for (int i = 0; i < 500; ++i) {
    flood("greedy", 1);
    ASSERT_LE(bytes("greedy"), quota);
  }
  EXPECT_GT(bytes("greedy"), quota / 2);
  EXPECT_EQ(bytes("modest"), before);
  EXPECT_GT(cache->stats().evictions[static_cast<std::size_t>(Reason::evicted_quota)], 0u);
}

TEST_F(TenantsTest, WhatRunsBeyondAQuotaRunsButIsNotCached) {
  ASSERT_TRUE(cache->set_limits("greedy", {.bytes = kBudget / 16}).ok());
  Sequence s = run_as("greedy", 1, 2000);
  expect_rows(s);
  EXPECT_LE(bytes("greedy"), kBudget / 16);
  EXPECT_LT(s.published_blocks(), 500u);
  cache->check();
}

TEST_F(TenantsTest, ALowerQuotaHoldsAtOnce) {
  flood("greedy", 500);
  ASSERT_GT(bytes("greedy"), kBudget / 8);
  ASSERT_TRUE(cache->set_limits("greedy", {.bytes = kBudget / 8}).ok());
  EXPECT_LE(bytes("greedy"), kBudget / 8);
}

TEST_F(TenantsTest, LeasesAreListedAndReleased) {
  Sequence a = run_as("a", 1, 40), b = run_as("b", 1, 40);
  const LeaseId first = cache->lease(a, {.pin = true, .label = "rules"}).value();
  const LeaseId second = cache->lease(a, {.ttl = 1'000'000'000}).value();
  const LeaseId other = cache->lease(b, {}).value();
  const auto listed = cache->leases("a", {}, 10);
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].id, first);
  EXPECT_EQ(listed[0].tenant, "a");
  EXPECT_EQ(listed[0].label, "rules");
  EXPECT_TRUE(listed[0].pin);
  EXPECT_EQ(listed[1].id, second);
  EXPECT_FALSE(listed[1].pin);
  EXPECT_EQ(cache->leases({}, {}, 10).size(), 3u);
  ASSERT_EQ(cache->leases({}, first, 1).size(), 1u);
  EXPECT_EQ(cache->leases({}, first, 1)[0].id, second);
  EXPECT_EQ(cache->tenant("a").leases, 2u);
  EXPECT_TRUE(cache->release(first).ok());
  EXPECT_TRUE(cache->release(other).ok());
  clock.advance(2'000'000'000);
  cache->poll();
  EXPECT_TRUE(cache->leases({}, {}, 10).empty());
  EXPECT_EQ(cache->tenant("a").leases, 0u);
}

TEST_F(TenantsTest, OneTenantHasNotAllLeases) {
  start_with({.tenant_leases_max = 3});
  Sequence a = run_as("a", 1, 40), b = run_as("b", 1, 40);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(cache->lease(a, {.ttl = 1'000'000'000}).ok());
  EXPECT_EQ(cache->lease(a, {}).error().code, Code::exhausted);
  EXPECT_TRUE(cache->lease(b, {}).ok());
  ASSERT_TRUE(cache->set_limits("a", {.leases = 4}).ok());
  EXPECT_TRUE(cache->lease(a, {}).ok());
  EXPECT_FALSE(cache->lease(a, {}).ok());
}

TEST_F(TenantsTest, OneTenantHasNotAllOfThePinBudget) {
  start_with({.pin_budget = 0.2, .tenant_pin_share = 0.5});
  std::uint64_t pinned = 0;
  for (TokenId i = 0; i < 200; ++i) {
    Sequence s = run_as("greedy", 1000 * i, 40);
    if (cache->lease(s, {.pin = true}).ok()) ++pinned;
  }
  EXPECT_GT(pinned, 0u);
  EXPECT_LE(cache->tenant("greedy").pinned_bytes, kBudget / 10);
  EXPECT_GT(cache->tenant("greedy").pinned_bytes, kBudget / 20);
  Sequence s = run_as("modest", 7, 40);
  EXPECT_TRUE(cache->lease(s, {.pin = true}).ok());
  ASSERT_TRUE(cache->set_limits("modest", {.pin_bytes = 1}).ok());
  EXPECT_FALSE(cache->lease(run_as("modest", 9'000, 40), {.pin = true}).ok());
}

TEST_F(TenantsTest, ABreakpointIsExtendedAndNotTakenTwice) {
  constexpr Nanoseconds kSecond = 1'000'000'000;
  const LeaseRequest mark{.end_token = 32, .ttl = kSecond, .pin = true, .breakpoint = true};
  Sequence a = run_as("a", 1, 40);
  const LeaseId first = cache->lease(a, mark).value();
  const Nanoseconds before = cache->lease_info(first).value().expires;
  clock.advance(kSecond / 2);
  Sequence again = run_as("a", 1, 60);  // begins with the same tokens
  EXPECT_EQ(cache->lease(again, mark).value(), first);
  EXPECT_EQ(cache->lease_info(first).value().expires, before + kSecond / 2);
  EXPECT_EQ(cache->tenant("a").leases, 1u);
  // A shorter time takes nothing away.
  LeaseRequest brief = mark;
  brief.ttl = kSecond / 10;
  EXPECT_EQ(cache->lease(again, brief).value(), first);
  EXPECT_EQ(cache->lease_info(first).value().expires, before + kSecond / 2);
  // Another place is another lease, and a pin is none of them.
  EXPECT_NE(cache->lease(again, {.end_token = 56, .ttl = kSecond, .pin = true, .breakpoint = true})
                .value(),
            first);
  EXPECT_NE(cache->lease(again, {.end_token = 32, .ttl = kSecond, .pin = true}).value(), first);
  again.close();
  a.close();
  clock.advance(2 * kSecond);
  cache->poll();
  EXPECT_EQ(cache->stats().pinned_bytes, 0u);
  EXPECT_TRUE(cache->core().breakpoints.empty());
  cache->check();
}

TEST_F(TenantsTest, ABreakpointStaysUnderPressureUntilARequestCouldNotGoOn) {
  const LeaseRequest mark{.ttl = 1'000'000'000'000, .pin = true, .breakpoint = true};
  run_as("a", 1, 40).close();
  {
    Sequence s = run_as("a", 1, 40);
    ASSERT_TRUE(cache->lease(s, mark).ok());
    Sequence other = run_as("b", 500, 40);
    ASSERT_TRUE(cache->lease(other, mark).ok());
  }
  const auto cached = [&](const char* tenant, TokenId first) {
    root = of(tenant);
    Sequence s = open();
    return cache->attach(s, tokens_from(first, 41)).tokens;
  };
  flood("a", 2000);
  EXPECT_EQ(cached("a", 1), 40u);
  // The tenant's own breakpoints yield before those of others.
  EXPECT_TRUE(cache->soften_breakpoint(of("a")));
  flood("a", 2000);
  EXPECT_EQ(cached("a", 1), 40u) << "it is a lease still, and others can go";
  EXPECT_GT(cache->tenant("b").pinned_bytes, 0u);
  EXPECT_EQ(cache->tenant("a").pinned_bytes, 0u);
  EXPECT_TRUE(cache->soften_breakpoint(of("a")));
  EXPECT_FALSE(cache->soften_breakpoint(of("a")));
  EXPECT_EQ(cache->stats().pinned_bytes, 0u);
  cache->check();
}

TEST_F(TenantsTest, LeasedBlocksOfAGreedyTenantGoBeforeTheShareOfAnother) {
  for (TokenId i = 0; i < 10; ++i) {
    Sequence s = run_as("modest", 1000 * i, 40);
    ASSERT_TRUE(cache->lease(s, {.ttl = 1'000'000}).ok());
  }
  const std::uint64_t before = bytes("modest");
  for (int i = 0; i < 2000; ++i) {
    Sequence s = run_as("greedy", next_ += 10'000, 40);
    (void)cache->lease(s, {.ttl = 1'000'000'000}).ok();
  }
  EXPECT_EQ(bytes("modest"), before);
}

TEST_F(TenantsTest, WhoHasNothingIsForgotten) {
  start_with({.roots_max = 4});
  for (int i = 0; i < 100; ++i) run_as("t" + std::to_string(i), 1, 40).close();
  EXPECT_LE(cache->core().store.tenants().size(), 4u);
}

// Whatever tenants do in whatever order, none of them sinks below its share, or below what it had if
// that was less, by what another does.
TEST_F(TenantsTest, NobodyIsPushedBelowItsShare) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    const auto policies = evict_policies();
    CacheOptions o;
    o.evictor = policies[seed % policies.size()]->name;
    start_with(o);
    const Geometry shapes[] = {
        geometry, toy_geometry({toy_group(GroupKind::full, 2, 4)}, kBlock),
        toy_geometry({toy_group(GroupKind::full, 1, 1), toy_group(GroupKind::window, 1, 1, 6)},
                     kBlock)};
    const std::string names[] = {"a", "b", "c", "d"};
    std::map<std::string, std::uint64_t> had;
    for (int turn = 0; turn < 300; ++turn) {
      const std::size_t who = random.below(4) < 2 ? 0 : random.below(4);  // a is greedy
      for (const std::string& name : names) had[name] = bytes(name);
      geometry = shapes[random.below(3)];
      {
        root = of(names[who]);
        Sequence s = open({.token_capacity = 500});
        cache->attach(s, tokens_from(static_cast<TokenId>(random.below(60) * 1000),
                                     1 + random.below(who == 0 ? 400 : 60)));
        const StepNeed need{&s, static_cast<std::uint32_t>(s.tokens().size()) - s.length()};
        if (cache->reserve({&need, 1}).ok())
          prefill(s);
        else
          EXPECT_GT(cache->tenant(names[who]).pinned_bytes + room_for(s.tokens().size()),
                    cache->tenant(names[who]).share_bytes)
              << "there is room for what fits into a share beside its pins: " << names[who];
        if (random.chance(0.2))
          (void)cache
              ->lease(s, {.ttl = static_cast<Nanoseconds>(random.below(5'000)),
                          .pin = random.chance(0.3)})
              .ok();
      }
      clock.advance(static_cast<Nanoseconds>(random.below(1'000)));
      for (std::size_t i = 0; i < 4; ++i) {
        if (i == who) continue;
        const std::uint64_t share = cache->tenant(names[i]).share_bytes;
        ASSERT_GE(bytes(names[i]), std::min(had[names[i]], share))
            << "seed " << seed << " turn " << turn << ": " << names[who] << " against " << names[i];
      }
      if (turn % 50 == 0) cache->check();
    }
    for (const std::string& name : names) EXPECT_GT(bytes(name), 0u);
  }
}

}  // namespace
}  // namespace quire
