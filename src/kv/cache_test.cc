#include "kv/cache_testing.h"

namespace quire {
namespace {

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

TEST_F(CacheTest, BlocksAreTimedFromStoredToEvicted) {
  const Nanoseconds second = 1'000'000'000;
  const auto prompt = tokens_from(1, 9);
  run(prompt).close();  // two blocks
  clock.advance(4 * second);
  run(prompt).close();
  clock.advance(30 * second);
  cache->clear();
  const BlockTimes& t = cache->block_times();
  EXPECT_EQ(t.reuse_gap.count, 2u);
  EXPECT_DOUBLE_EQ(t.reuse_gap.sum, 2 * 4);
  EXPECT_EQ(t.lifetime.count, 2u);
  EXPECT_DOUBLE_EQ(t.lifetime.sum, 2 * 34);
  EXPECT_DOUBLE_EQ(t.idle_before_evict.sum, 2 * 30);
}

TEST_F(CacheTest, BytesAreCountedByRoot) {
  RootIdentity id = identity();
  id.tenant = "other";
  const RootId other = cache->root(id, geometry).value();
  run(tokens_from(1, 17)).close();  // four blocks
  const std::uint64_t bytes = cache->cached_bytes(root);
  EXPECT_EQ(bytes, cache->stats().cached_bytes);
  EXPECT_EQ(cache->cached_bytes(other), 0u);
  root = other;
  run(tokens_from(1, 9)).close();
  EXPECT_EQ(cache->cached_bytes(other), bytes / 2);
  cache->clear();
  EXPECT_EQ(cache->cached_bytes(other), 0u);
}

}  // namespace
}  // namespace quire
