// Blocks found by their own tokens, behind any prefix.
#include <chrono>

#include "kv/cache_testing.h"

namespace quire {
namespace {

class TextTest : public CacheTest {
 protected:
  std::optional<TextPlace> find(const Sequence& s, std::initializer_list<TokenId> block,
                                std::optional<TextPlace> after = {}) {
    return cache->find_text(s, std::vector<TokenId>(block), after);
  }
};

TEST_F(TextTest, ABlockIsFoundWhereverItStandsAndSoIsTheNext) {
  const auto prompt = tokens_from(1, 17);
  run(prompt).close();
  Sequence asking = open();
  const auto third = find(asking, {9, 10, 11, 12});
  ASSERT_TRUE(third);
  EXPECT_EQ(third->end, 12u);
  EXPECT_FALSE(third->follows);
  const auto fourth = find(asking, {13, 14, 15, 16}, third);
  ASSERT_TRUE(fourth);
  EXPECT_TRUE(fourth->follows);
  EXPECT_EQ(fourth->end, 16u);
  EXPECT_FALSE(find(asking, {10, 11, 12, 13}));  // whole blocks only
  const CachedText text = cache->text(*fourth);
  EXPECT_EQ(text.tokens, tokens_from(1, 16));
  Sequence holding = open();
  EXPECT_EQ(cache->attach(holding, prompt, text.keys).tokens, 16u);
}

// Of blocks with equal tokens it takes the one that follows the given place; without one, the
// choice is deterministic.
TEST_F(TextTest, OfManyItTakesTheOneThatGoesOn) {
  for (const TokenId first : {100u, 200u, 300u}) {
    std::vector<TokenId> prompt = tokens_from(first, 4);
    for (const TokenId t : tokens_from(1, 5)) prompt.push_back(t);
    run(prompt).close();
  }
  Sequence asking = open();
  const BlockKey any = cache->text(*find(asking, {1, 2, 3, 4})).keys.back();
  for (const TokenId first : {300u, 100u, 200u}) {
    const auto place =
        find(asking, {1, 2, 3, 4}, find(asking, {first, first + 1, first + 2, first + 3}));
    ASSERT_TRUE(place && place->follows);
    EXPECT_EQ(cache->text(*place).tokens[0], first);
    EXPECT_LE(any, cache->text(*place).keys.back());
  }
}

TEST_F(TextTest, RootsAndSaltsKeepApart) {
  const std::vector<KeyChange> salt = {{.position = 0, .kind = ChangeKind::salt, .value = "s"}};
  run(tokens_from(1, 9), {.changes = salt}).close();
  Sequence plain = open(), salted = open({.changes = salt});
  cache->attach(plain, tokens_from(50, 9));
  cache->attach(salted, tokens_from(50, 9));
  EXPECT_FALSE(find(plain, {5, 6, 7, 8}));
  EXPECT_TRUE(find(salted, {5, 6, 7, 8}));
  // Equal blocks of other tenants do not hide a tenant's own.
  run(tokens_from(1, 9)).close();
  EXPECT_NE(find(plain, {5, 6, 7, 8})->node, find(salted, {5, 6, 7, 8})->node);
  RootIdentity other = identity();
  other.tenant = "u";
  root = cache->root(other, geometry).value();
  EXPECT_FALSE(find(open(), {5, 6, 7, 8}));
}

TEST_F(TextTest, WhatWasEvictedIsNotFound) {
  run(tokens_from(1, 9)).close();
  Sequence asking = open();
  EXPECT_TRUE(find(asking, {5, 6, 7, 8}));
  cache->clear();
  EXPECT_FALSE(find(asking, {5, 6, 7, 8}));
  run(tokens_from(1, 9)).close();
  EXPECT_TRUE(find(asking, {5, 6, 7, 8}));
}

double fastest_ms(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    best = std::min(
        best, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                  .count());
  }
  return best;
}

// Half of the blocks have equal tokens. A search must not look at every block.
TEST_F(TextTest, AHundredThousandBlocksDoNotStallASearch) {
  constexpr std::uint32_t kSequences = 100, kBlocks = 1000;
  CacheOptions o;
  o.budget_bytes = 64 << 20;
  o.tokens_per_block = kBlock;
  o.node_capacity = 1 << 17;
  cache = std::make_unique<KvCache>(o, toy_memory(o.budget_bytes, 1 << 16), clock);
  geometry = toy_geometry({toy_group(GroupKind::full, 1, 1)}, kBlock);
  root = cache->root(identity(), geometry).value();
  for (std::uint32_t i = 0; i < kSequences; ++i) {
    std::vector<TokenId> prompt(kBlocks * kBlock + 1, 7);
    for (std::uint32_t t = 0; t < (i % 2 ? prompt.size() : kBlock); ++t)
      prompt[t] = 1000 + i * kBlocks * kBlock + t;
    run(prompt, {.token_capacity = kBlocks * kBlock + 1}).close();
  }
  ASSERT_GE(cache->stats().nodes, 100'000u - 2);
  Sequence asking = open();
  const std::vector<TokenId> nowhere = tokens_from(1u << 30, kBlock), often(kBlock, 7);
  std::size_t found = 0, seen = 0;
  const double search = fastest_ms([&] {
    for (int i = 0; i < 50; ++i) {
      found += cache->find_text(asking, nowhere, {}).has_value();
      found += cache->find_text(asking, often, {}).has_value();
    }
  });
  const double walk = fastest_ms([&] { cache->tree([&](const NodeInfo&) { ++seen; }); });
  EXPECT_EQ(found, 5u * 50);
  EXPECT_GE(seen, 5u * 100'000 - 10);
  EXPECT_LT(search, walk / 10) << "100 searches against one walk, ms";
}

}  // namespace
}  // namespace quire
