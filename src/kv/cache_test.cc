#include "kv/cache.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kv/test_model.h"

namespace quire {
namespace {

std::vector<TokenId> tokens_from(TokenId first, std::size_t count) {
  std::vector<TokenId> t(count);
  std::iota(t.begin(), t.end(), first);
  return t;
}

RootIdentity identity() {
  RootIdentity id;
  id.tenant = "t";
  return id;
}

// A cache, a toy model that writes and checks every row, and the few moves the tests make.
class CacheTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlock = 4;

  void start(std::vector<LayerGroup> groups, std::uint64_t budget = 1 << 20, CacheOptions o = {}) {
    o.budget_bytes = budget;
    o.tokens_per_block = kBlock;
    o.node_capacity = 4096;
    cache = std::make_unique<KvCache>(o, toy_memory(4 * budget), clock);
    geometry = toy_geometry(std::move(groups), kBlock);
    root = cache->root(identity(), geometry).value();
  }
  void SetUp() override { start({toy_group(GroupKind::full, 1, 2)}); }
  void TearDown() override {
    if (cache) cache->check();
  }

  Sequence open(SequenceOptions o = {}) {
    o.root = root;
    if (o.token_capacity == 0) o.token_capacity = 512;
    return std::move(cache->open(o).value());
  }

  void expect_rows(const Sequence& s) {
    History h;
    h.assign(s.tokens());
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const LayerGroup& group = geometry.groups[g];
      if (group.kind == GroupKind::state) {
        if (s.length() > 0) {
          EXPECT_TRUE(toy_state_matches(cache->arena(), s.table(g)[0], h, s.length()));
        }
        continue;
      }
      const std::uint32_t from =
          group.window && s.length() + 1 > group.window ? s.length() + 1 - group.window : 0;
      EXPECT_TRUE(toy_matches(cache->arena(), geometry, g, s.table(g), h, from, s.length()))
          << "group " << g;
    }
  }

  void write(const Reservation& r, std::size_t item, std::span<const TokenId> tokens) {
    History h;
    h.assign(tokens);
    for (std::uint32_t g = 0; g < geometry.groups.size(); ++g) {
      const KvSequenceView v = r.view(item, g, 0);
      if (geometry.groups[g].kind == GroupKind::state)
        toy_write_state(cache->arena(), v.blocks[0], h, v.past + v.row_count);
      else
        toy_write(cache->arena(), geometry, g, v, h, v.past, v.past + v.row_count);
    }
  }

  // Computes the next `count` tokens of a sequence: known ones, then `more`.
  void step(Sequence& s, std::uint32_t count, std::span<const TokenId> more = {}) {
    std::vector<TokenId> all(s.tokens().begin(), s.tokens().end());
    all.insert(all.end(), more.begin(), more.end());
    const StepNeed need{&s, count};
    Result<Reservation> r = cache->reserve({&need, 1});
    ASSERT_TRUE(r.ok()) << r.error().message;
    write(r.value(), 0, std::span(all).first(s.length() + count));
    r.value().commit(0, std::span(all).subspan(s.length(), count));
  }
  void prefill(Sequence& s) {
    if (s.length() < s.tokens().size())
      step(s, static_cast<std::uint32_t>(s.tokens().size()) - s.length());
  }
  Sequence run(std::span<const TokenId> prompt, SequenceOptions o = {}) {
    Sequence s = open(o);
    cache->attach(s, prompt);
    prefill(s);
    return s;
  }

  ManualClock clock;
  Geometry geometry;
  RootId root{};
  std::unique_ptr<KvCache> cache;
};

TEST_F(CacheTest, SecondPromptIsServedTokenExactly) {
  const auto prompt = tokens_from(100, 18);
  Sequence a = run(prompt);
  EXPECT_EQ(a.length(), 18u);
  EXPECT_EQ(a.published_blocks(), 4u);
  Sequence b = open();
  const Attached hit = cache->attach(b, prompt);
  EXPECT_EQ(hit.tokens, 16u);  // the open tail of `a` is not published
  EXPECT_EQ(hit.reason, Reason::block_partial);
  expect_rows(b);
  prefill(b);
  expect_rows(b);

  auto longer = tokens_from(100, 14);  // diverges inside the fourth block
  longer.push_back(7);
  longer.push_back(8);
  Sequence c = open();
  const Attached partial = cache->attach(c, longer);
  EXPECT_EQ(partial.tokens, 14u);
  EXPECT_EQ(partial.partial, 2u);
  expect_rows(c);
  prefill(c);
  expect_rows(c);
  expect_rows(a);
  EXPECT_EQ(cache->stats().blocks_copied, 1u);
}

TEST_F(CacheTest, RepeatedWholePromptComputesOnlyItsLastToken) {
  const auto prompt = tokens_from(1, 16);
  Sequence a = run(prompt);
  const std::uint64_t blocks = cache->stats().referenced_blocks;
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, prompt).tokens, 15u);
  prefill(b);
  expect_rows(b);
  EXPECT_EQ(cache->stats().blocks_deduplicated, 1u);
  EXPECT_EQ(cache->stats().referenced_blocks, blocks);  // its copy of the last block was given back
}

TEST_F(CacheTest, GeneratedTokensAreServedToo) {
  Sequence a = run(tokens_from(1, 6));
  for (TokenId t = 50; t < 60; ++t) step(a, 1, std::vector{t});
  auto next = std::vector<TokenId>(a.tokens().begin(), a.tokens().end());
  a.close();
  next.push_back(9);
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, next).tokens, 16u);
  expect_rows(b);
}

TEST_F(CacheTest, WhatIsNotCommittedIsGivenBack) {
  Sequence a = run(tokens_from(1, 6));
  const std::uint64_t referenced = cache->stats().referenced_blocks;
  {
    const StepNeed need{&a, 9};
    Result<Reservation> r = cache->reserve({&need, 1});
    ASSERT_TRUE(r.ok());
    EXPECT_GT(cache->stats().referenced_blocks, referenced);
  }
  EXPECT_EQ(cache->stats().referenced_blocks, referenced);
  EXPECT_EQ(a.length(), 6u);
  expect_rows(a);
  // A draft of five of which two are accepted.
  const StepNeed need{&a, 5};
  Result<Reservation> r = cache->reserve({&need, 1});
  std::vector<TokenId> all = tokens_from(1, 11);
  write(r.value(), 0, all);
  EXPECT_EQ(r.value().commit(0, std::span(all).subspan(6, 2)), 8u);
  expect_rows(a);
  EXPECT_EQ(a.published_blocks(), 2u);
}

TEST_F(CacheTest, ForkSharesEverythingUntilSomebodyWrites) {
  Sequence a = run(tokens_from(1, 10));
  const std::uint64_t referenced = cache->stats().referenced_blocks;
  Sequence b = std::move(cache->fork(a).value());
  EXPECT_EQ(cache->stats().referenced_blocks, referenced);
  step(b, 1, std::vector<TokenId>{77});
  step(a, 1, std::vector<TokenId>{88});
  expect_rows(a);
  expect_rows(b);
  EXPECT_EQ(cache->stats().referenced_blocks, referenced + 1);
}

TEST_F(CacheTest, TruncateThenOtherTokens) {
  Sequence a = run(tokens_from(1, 16));
  EXPECT_EQ(cache->truncate(a, 6), 6u);
  EXPECT_EQ(a.tokens().size(), 6u);
  step(a, 4, tokens_from(900, 4));
  expect_rows(a);
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, tokens_from(1, 17)).tokens, 16u);  // what was published stays right
  expect_rows(b);
}

TEST_F(CacheTest, PreemptedSequencesResumeWhereTheyWere) {
  for (const Preempt how : {Preempt::recompute, Preempt::park}) {
    Sequence a = run(tokens_from(how == Preempt::park ? 1000 : 1, 10));
    step(a, 3, tokens_from(500, 3));
    cache->preempt(a, how);
    cache->check();
    EXPECT_EQ(cache->stats().parked, how == Preempt::park ? 1u : 0u);
    const Attached back = cache->attach(a);
    EXPECT_EQ(back.tokens, how == Preempt::park ? 13u : 12u);
    prefill(a);
    EXPECT_EQ(a.length(), 13u);
    expect_rows(a);
  }
}

TEST_F(CacheTest, EqualPromptsWaitForTheFirst) {
  const auto prompt = tokens_from(1, 18);
  Sequence a = open(), b = open();
  cache->attach(a, prompt);
  cache->place(b, prompt);
  EXPECT_EQ(cache->peek(b).tokens, 0u);
  EXPECT_EQ(cache->peek(b).in_flight, 16u);
  EXPECT_EQ(cache->peek(b).reason, Reason::in_flight);
  step(a, 9);
  EXPECT_EQ(cache->peek(b).tokens, 8u);  // its cursor moved when a published
  EXPECT_EQ(cache->peek(b).in_flight, 8u);
  a.close();
  EXPECT_EQ(cache->peek(b).in_flight, 0u);
  EXPECT_EQ(cache->attach(b).tokens, 8u);
  prefill(b);
  expect_rows(b);
}

TEST_F(CacheTest, EvictionTakesLeavesOfIdleSequencesFirst) {
  start({toy_group(GroupKind::full, 1, 2)}, 8 * 4096);
  std::uint32_t served = 0;
  Sequence kept = run(tokens_from(1, 40));
  for (int i = 0; i < 200; ++i) {
    Sequence s = run(tokens_from(static_cast<TokenId>(1000 + 100 * i), 40));
    expect_rows(s);
    cache->check();
    served += cache->stats().evicted_blocks > 0;
  }
  EXPECT_GT(served, 0u);
  expect_rows(kept);
  EXPECT_GT(cache->stats().ghost_hits[0] + cache->journal().count(Reason::evicted_capacity), 0u);
}

TEST_F(CacheTest, ReserveThatCannotFitChangesNothing) {
  start({toy_group(GroupKind::full, 1, 2)}, 4 * 4096);
  Sequence a = run(tokens_from(1, 40));
  Sequence b = open({.token_capacity = 4096});
  cache->attach(b, tokens_from(5000, 4000));
  const CacheStats before = cache->stats();
  const StepNeed need{&b, 4000};
  Result<Reservation> r = cache->reserve({&need, 1});
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.error().code, Code::exhausted);
  EXPECT_EQ(cache->stats().referenced_blocks, before.referenced_blocks);
  expect_rows(a);
}

TEST_F(CacheTest, WindowGroupsStopGrowing) {
  start({toy_group(GroupKind::full, 1, 1), toy_group(GroupKind::window, 2, 1, 8)});
  Sequence a = open({.token_capacity = 512, .publish = false});
  cache->attach(a, tokens_from(1, 10));
  prefill(a);
  for (TokenId t = 0; t < 300; ++t) {
    step(a, 1, std::vector{t});
    expect_rows(a);
  }
  // Three blocks of the window at most: the one being written and those it still sees.
  EXPECT_LE(cache->stats().referenced_blocks, 310 / kBlock + 1 + 3);
}

TEST_F(CacheTest, WindowedHitNeedsOnlyTheLastTokens) {
  start({toy_group(GroupKind::full, 1, 1), toy_group(GroupKind::window, 2, 1, 8)});
  auto prompt = tokens_from(1, 41);
  run(prompt).close();
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, prompt).tokens, 40u);
  expect_rows(b);
  prefill(b);
  expect_rows(b);
  // Going back further than the window looks is served from what is still cached.
  EXPECT_EQ(cache->truncate(b, 21), 21u);
  step(b, 5, tokens_from(700, 5));
  expect_rows(b);
}

TEST_F(CacheTest, StateIsServedAtSnapshotsOnly) {
  start({toy_group(GroupKind::full, 1, 1), toy_group(GroupKind::state, 2, 0)});
  const auto prompt = tokens_from(1, 23);
  Sequence a = open();
  cache->attach(a, prompt);
  step(a, 12);
  cache->snapshot(a);
  prefill(a);
  expect_rows(a);
  Sequence b = open();
  const Attached hit = cache->attach(b, prompt);
  EXPECT_EQ(hit.tokens, 12u);
  EXPECT_EQ(hit.reason, Reason::window_dropped);
  expect_rows(b);
  prefill(b);
  expect_rows(b);
  // A step is all or nothing for a state.
  const StepNeed need{&b, 3};
  {
    Result<Reservation> r = cache->reserve({&need, 1});
    auto all = tokens_from(1, 26);
    write(r.value(), 0, all);
    EXPECT_EQ(r.value().commit(0, std::span(all).subspan(23, 2)), 23u);
  }
  EXPECT_EQ(b.tokens().size(), 25u);
  prefill(b);
  expect_rows(b);
}

TEST_F(CacheTest, SaltedBlocksServeOnlyTheirOwn) {
  const auto prompt = tokens_from(1, 17);
  const std::vector<KeyChange> salt = {{.position = 8, .kind = ChangeKind::salt, .value = "s"}};
  Sequence a = run(prompt, {.changes = salt});
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, prompt).tokens, 8u);  // nothing of the salted block, not even in part
  Sequence c = open({.changes = salt});
  EXPECT_EQ(cache->attach(c, prompt).tokens, 16u);
  const std::vector<KeyChange> other = {{.position = 8, .kind = ChangeKind::salt, .value = "x"}};
  Sequence d = open({.changes = other});
  EXPECT_EQ(cache->attach(d, prompt).tokens, 8u);
}

TEST_F(CacheTest, FaultedSequencesPublishNothingMore) {
  Sequence a = open();
  cache->attach(a, tokens_from(1, 16));
  step(a, 8);
  a.mark_faulted();
  prefill(a);
  EXPECT_EQ(a.published_blocks(), 2u);
  a.close();
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, tokens_from(1, 17)).tokens, 8u);
}

TEST_F(CacheTest, ImpureTokensStayPrivate) {
  Sequence a = open();
  cache->attach(a, tokens_from(1, 16));
  a.limit_purity(9);
  prefill(a);
  EXPECT_EQ(a.published_blocks(), 2u);
}

TEST_F(CacheTest, LeasesAndPinsKeepBlocks) {
  start({toy_group(GroupKind::full, 1, 2)}, 8 * 4096);
  Sequence a = run(tokens_from(1, 17)), b = run(tokens_from(500, 17));
  const LeaseId pin = cache->lease(a, {.pin = true}).value();
  const LeaseId lease = cache->lease(b, {.ttl = 1'000'000'000, .priority = 90}).value();
  EXPECT_EQ(cache->lease_info(pin).value().tokens, 16u);
  a.close();
  b.close();
  const auto churn = [&] {
    for (int i = 0; i < 100; ++i)
      run(tokens_from(static_cast<TokenId>(10000 + 100 * i), 33)).close();
  };
  churn();
  const auto cached = [&](TokenId first) {
    Sequence s = open();
    cache->place(s, tokens_from(first, 17));
    return cache->peek(s).tokens;
  };
  EXPECT_EQ(cached(1), 16u);
  EXPECT_EQ(cached(500), 16u);
  clock.advance(2'000'000'000);
  churn();
  EXPECT_EQ(cached(1), 16u);
  EXPECT_EQ(cached(500), 0u);
  EXPECT_FALSE(cache->lease_info(lease).ok());
  EXPECT_TRUE(cache->release(pin).ok());
  churn();
  EXPECT_EQ(cached(1), 0u);
}

TEST_F(CacheTest, PinBudgetIsKept) {
  CacheOptions o;
  o.pin_budget = 0.01;
  start({toy_group(GroupKind::full, 1, 2)}, 8 * 4096, o);
  Sequence a = run(tokens_from(1, 17));
  const Result<LeaseId> pin = cache->lease(a, {.pin = true});
  ASSERT_FALSE(pin.ok());
  EXPECT_EQ(pin.error().code, Code::exhausted);
}

TEST_F(CacheTest, ClearAndEvictLeaveWhatIsInUse) {
  Sequence a = run(tokens_from(1, 17));
  run(tokens_from(500, 17)).close();
  std::vector<BlockKey> keys;
  cache->tree([&](const NodeInfo& n) {
    if (n.depth_tokens == 4) keys.push_back(n.key);
  });
  ASSERT_EQ(keys.size(), 2u);
  Evicted sum;
  for (const BlockKey& k : keys) {
    const Evicted e = cache->evict(k).value();
    sum.blocks += e.blocks;
    sum.in_use += e.in_use;
  }
  EXPECT_EQ(sum.blocks, 4u);
  EXPECT_EQ(sum.in_use, 4u);
  a.close();
  EXPECT_EQ(cache->clear().blocks, 4u);
  EXPECT_EQ(cache->stats().cached_blocks, 0u);
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, tokens_from(1, 17)).reason, Reason::cleared);
}

TEST_F(CacheTest, BudgetShrinksAndGrows) {
  start({toy_group(GroupKind::full, 1, 2)}, 16 * 4096);
  Sequence kept = run(tokens_from(1, 17));
  for (int i = 0; i < 40; ++i) run(tokens_from(static_cast<TokenId>(1000 + 100 * i), 33)).close();
  EXPECT_LE(cache->resize(4 * 4096), 4u * 4096);
  cache->check();
  expect_rows(kept);
  step(kept, 4, tokens_from(70, 4));
  expect_rows(kept);
  EXPECT_EQ(cache->resize(64 * 4096), 64u * 4096);
}

TEST_F(CacheTest, LayoutsShareMemory) {
  start({toy_group(GroupKind::full, 1, 2)}, 16 * 4096);
  const Geometry wide = toy_geometry({toy_group(GroupKind::full, 4, 4)}, kBlock);
  const RootId other = cache->root(identity(), wide).value();
  EXPECT_NE(other, root);
  for (int i = 0; i < 100; ++i) run(tokens_from(static_cast<TokenId>(1000 + 100 * i), 33)).close();
  // The whole budget holds cached blocks of one size; the other gets it slab by slab.
  Sequence s = std::move(cache->open({.root = other, .token_capacity = 64}).value());
  cache->attach(s, tokens_from(1, 33));
  const StepNeed need{&s, 33};
  Result<Reservation> r = cache->reserve({&need, 1});
  ASSERT_TRUE(r.ok()) << r.error().message;
  r.value().commit(0, 33);
  EXPECT_GT(cache->journal().count(Reason::evicted_slab), 0u);
}

TEST_F(CacheTest, ClosingDuringAStepFencesItsBlocks) {
  Sequence a = run(tokens_from(1, 6));
  const StepNeed need{&a, 4};
  {
    Result<Reservation> r = cache->reserve({&need, 1});
    a.close();
    EXPECT_GT(cache->stats().fenced_bytes, 0u);
  }
  EXPECT_EQ(cache->stats().fenced_bytes, 0u);
  EXPECT_EQ(cache->stats().referenced_blocks, 0u);
}

TEST_F(CacheTest, TwoStepsInFlightCommitInOrder) {
  Sequence a = run(tokens_from(1, 6));
  const std::vector<TokenId> all = tokens_from(1, 12);
  const StepNeed need{&a, 3};
  {
    Result<Reservation> first = cache->reserve({&need, 1});
    Result<Reservation> second = cache->reserve({&need, 1});
    EXPECT_EQ(second.value().past(0), 9u);
    write(first.value(), 0, std::span(all).first(9));
    write(second.value(), 0, all);
    first.value().commit(0, std::span(all).subspan(6, 3));
    expect_rows(a);
    second.value().commit(0, std::span(all).subspan(9, 3));
  }
  EXPECT_EQ(a.length(), 12u);
  expect_rows(a);
}

TEST_F(CacheTest, LanesKeepDifferentTokensAndGiveTheirPagesBack) {
  constexpr std::uint32_t kDim = 8;
  start({toy_group(GroupKind::full, 2, 2, 0, kDim)});
  Sequence a = run(tokens_from(1, 22), {.publish = false});
  const std::uint64_t before = cache->stats().referenced_bytes;
  const std::vector<std::vector<std::uint32_t>> keep = {
      {0, 1, 7, 9, 15}, {}, {3}, {0, 2, 4, 6, 8, 10, 12, 14, 16}};
  const std::vector<std::span<const std::uint32_t>> spans(keep.begin(), keep.end());
  ASSERT_TRUE(cache->compact(a, 0, 20, spans).ok());
  EXPECT_EQ(cache->ragged_until(a, 0), 20u);
  EXPECT_LT(cache->stats().referenced_bytes, before);
  History h;
  h.assign(a.tokens());
  const std::size_t keys = geometry.key_bytes(geometry.groups[0]);
  const auto expect_lanes = [&] {
    for (std::uint32_t lane = 0; lane < 4; ++lane) {
      const LaneView v = cache->lane(a, 0, lane);
      for (std::uint32_t i = 0; i < v.slots; ++i) {
        const std::byte* page = arena_at(cache->arena(), v.pages[i / kBlock]);
        float key, value;
        std::memcpy(&key, page + i % kBlock * sizeof key, sizeof key);
        std::memcpy(&value, page + keys + i % kBlock * kDim * sizeof value, sizeof value);
        EXPECT_EQ(key, toy_value(h.at(v.positions[i]), v.positions[i], lane, 0));
        EXPECT_EQ(value, toy_value(h.at(v.positions[i]), v.positions[i], lane, 128));
      }
    }
  };
  expect_lanes();
  EXPECT_EQ(cache->lane(a, 0, 3).slots, 9u);

  // Freeing one head's page gives its bytes back.
  const std::uint64_t ragged = cache->stats().referenced_blocks;
  cache->shrink_lane(a, 0, 3, 8);
  EXPECT_EQ(cache->stats().referenced_blocks, ragged - 1);
  cache->check();

  // It goes on, is compacted again from lanes and blocks, and a fork shares its pages.
  step(a, 6, tokens_from(300, 6));
  h.assign(a.tokens());
  const std::vector<std::vector<std::uint32_t>> again = {{1, 15, 21}, {20}, {3, 23}, {0, 14}};
  const std::vector<std::span<const std::uint32_t>> more(again.begin(), again.end());
  ASSERT_TRUE(cache->compact(a, 0, 24, more).ok());
  expect_lanes();
  const std::uint64_t blocks = cache->stats().referenced_blocks;
  Sequence b = std::move(cache->fork(a).value());
  EXPECT_EQ(cache->stats().referenced_blocks, blocks);
  a.close();
  EXPECT_EQ(cache->lane(b, 0, 2).slots, 2u);
  cache->check();

  const std::vector<std::vector<std::uint32_t>> gone = {{2}, {}, {}, {}};  // lane 0 has dropped it
  const std::vector<std::span<const std::uint32_t>> bad(gone.begin(), gone.end());
  EXPECT_FALSE(cache->compact(b, 0, 24, bad).ok());
}

TEST_F(CacheTest, CompactedSequencesPublishNothingThatReadLess) {
  Sequence a = run(tokens_from(1, 12));
  const std::vector<std::vector<std::uint32_t>> keep = {{0}, {1}};
  const std::vector<std::span<const std::uint32_t>> spans(keep.begin(), keep.end());
  ASSERT_TRUE(cache->compact(a, 0, 12, spans).ok());
  step(a, 8, tokens_from(50, 8));
  EXPECT_EQ(a.published_blocks(), 3u);
  Sequence b = open();
  EXPECT_EQ(cache->attach(b, tokens_from(1, 13)).tokens,
            12u);  // what was published before stays shared
  expect_rows(b);
  // Going back behind the compaction means computing again.
  EXPECT_EQ(cache->truncate(a, 10), 10u);
  expect_rows(a);
}

// Blocks of 32 tokens and lengths from 50 to 4,000: what holds no live token is a few percent. Room
// for the longest sequence, given to every one, would be half empty.
TEST_F(CacheTest, MemoryHoldsLittleElseThanTokens) {
  CacheOptions o;
  o.budget_bytes = 512 << 20;
  o.tokens_per_block = 32;
  cache = std::make_unique<KvCache>(o, toy_memory(2 * o.budget_bytes, std::size_t{2} << 20), clock);
  geometry = toy_geometry({toy_group(GroupKind::full, 8, 2, 0, 16)}, 32);
  root = cache->root(identity(), geometry).value();
  Random random(3);
  std::vector<Sequence> all;
  std::uint64_t tokens = 0, naive = 0;
  for (int i = 0; i < 60; ++i) {
    const auto length = static_cast<std::uint32_t>(50 + random.below(3951));
    all.push_back(open({.token_capacity = 4000}));
    cache->attach(all.back(), tokens_from(static_cast<TokenId>(i) << 16, length));
    const StepNeed need{&all.back(), length};
    Result<Reservation> r = cache->reserve({&need, 1});
    ASSERT_TRUE(r.ok());
    r.value().commit(0, length);
    tokens += length;
    naive += 4000;
  }
  const double bytes_per_token = geometry.bytes_per_token(geometry.groups[0]);
  const double waste = 1 - static_cast<double>(tokens) * bytes_per_token /
                               static_cast<double>(cache->stats().slab_bytes);
  const double naive_waste = 1 - static_cast<double>(tokens) / static_cast<double>(naive);
  EXPECT_LT(waste, 0.04);
  EXPECT_GT(naive_waste, 0.4);
  RecordProperty("waste_percent", static_cast<int>(waste * 100));
}

}  // namespace
}  // namespace quire
