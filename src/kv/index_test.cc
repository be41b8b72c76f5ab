#include "kv/index.h"

#include <gtest/gtest.h>

#include <set>

#include "base/random.h"

namespace quire {
namespace {

constexpr std::uint32_t kBlock = 4;

BlockKey key_of(std::uint64_t value) {
  BlockKey k;
  value = mix64(value);
  std::memcpy(k.bytes.data(), &value, sizeof value);
  return k;
}

struct Chain {
  std::vector<TokenId> tokens;
  std::vector<BlockKey> keys;
  explicit Chain(std::vector<TokenId> t) : tokens(std::move(t)) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i + kBlock <= tokens.size(); i += kBlock) {
      for (std::size_t j = i; j < i + kBlock; ++j) sum = mix64(sum ^ tokens[j]);
      keys.push_back(key_of(sum));
    }
  }
  TokenChain view() const { return {keys, tokens, {}}; }
};

std::vector<NodeId> insert_all(PrefixIndex& index, NodeId root, const Chain& c) {
  std::vector<NodeId> path;
  for (std::size_t i = 0; i < c.keys.size(); ++i) {
    const NodeId parent = i == 0 ? root : path.back();
    NodeId n = index.find(parent, c.keys[i], 0, &c.tokens[i * kBlock]);
    if (n == kNoNode) n = index.insert(parent, c.keys[i], 0, &c.tokens[i * kBlock]);
    index.expose(n);
    path.push_back(n);
  }
  return path;
}

TEST(PrefixIndex, MatchesTheLongestRunOfBlocks) {
  PrefixIndex index({.node_capacity = 64, .tokens_per_block = kBlock});
  const NodeId root = index.add_root();
  const Chain a({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const std::vector<NodeId> nodes = insert_all(index, root, a);
  const Chain b({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 99, 13, 14, 15, 16});
  std::vector<NodeId> path(4);
  EXPECT_EQ(index.match(root, b.view(), path), 2u);
  EXPECT_EQ(path[1], nodes[1]);
  const PartialMatch partial = index.longest_child(nodes[1], 0, std::span(b.tokens).subspan(8, 4));
  EXPECT_EQ(partial.node, nodes[2]);
  EXPECT_EQ(partial.tokens, 3u);
  index.check();
}

TEST(PrefixIndex, TreesOfDifferentRootsAreApart) {
  PrefixIndex index({.node_capacity = 64, .tokens_per_block = kBlock});
  const NodeId one = index.add_root(), two = index.add_root();
  const Chain a({1, 2, 3, 4});
  insert_all(index, one, a);
  std::vector<NodeId> path(1);
  EXPECT_EQ(index.match(two, a.view(), path), 0u);
  EXPECT_EQ(index.longest_child(two, 0, a.tokens).tokens, 0u);
}

TEST(PrefixIndex, AChangeTagSeparatesEvenPartialMatches) {
  PrefixIndex index({.node_capacity = 64, .tokens_per_block = kBlock});
  const NodeId root = index.add_root();
  const Chain a({1, 2, 3, 4});
  index.expose(index.insert(root, a.keys[0], 7, a.tokens.data()));
  EXPECT_EQ(index.longest_child(root, 0, a.tokens).tokens, 0u);
  EXPECT_EQ(index.longest_child(root, 7, a.tokens).tokens, 4u);
  EXPECT_EQ(index.find(root, a.keys[0], 0, a.tokens.data()), kNoNode);
}

TEST(PrefixIndex, EqualKeysWithOtherTokensAreToldApart) {
  PrefixIndex index({.node_capacity = 600, .tokens_per_block = kBlock});
  const NodeId root = index.add_root();
  std::vector<std::vector<TokenId>> all;
  for (TokenId t = 0; t < 500; ++t) {
    all.push_back({t, t + 1, t + 2, t + 3});
    index.insert(root, key_of(t % 3), 0, all.back().data());
  }
  for (TokenId t = 0; t < 500; t += 2)
    index.erase(index.find(root, key_of(t % 3), 0, all[t].data()));
  index.check();
  for (TokenId t = 0; t < 500; ++t) {
    const NodeId n = index.find(root, key_of(t % 3), 0, all[t].data());
    EXPECT_EQ(n != kNoNode, t % 2 == 1);
    if (n != kNoNode) {
      EXPECT_EQ(index.tokens(n)[0], t);
    }
  }
}

TEST(PrefixIndex, FullIndexSaysSoAndReusesErasedNodes) {
  PrefixIndex index({.node_capacity = 3, .tokens_per_block = kBlock});
  const NodeId root = index.add_root();
  const std::vector<TokenId> t[] = {{1, 1, 1, 1}, {2, 2, 2, 2}, {3, 3, 3, 3}};
  const NodeId a = index.insert(root, key_of(1), 0, t[0].data());
  index.insert(root, key_of(2), 0, t[1].data());
  EXPECT_TRUE(index.full());
  EXPECT_EQ(index.insert(root, key_of(3), 0, t[2].data()), kNoNode);
  index.erase(a);
  EXPECT_NE(index.insert(root, key_of(3), 0, t[2].data()), kNoNode);
  index.check();
}

TEST(PrefixIndex, LongestChildAgreesWithTryingAllOfThem) {
  Random random(5);
  PrefixIndex index({.node_capacity = 400, .tokens_per_block = kBlock});
  const NodeId root = index.add_root();
  std::set<std::vector<TokenId>> children;
  for (int i = 0; i < 3000; ++i) {
    std::vector<TokenId> t(kBlock);
    for (TokenId& x : t) x = static_cast<TokenId>(random.below(4));
    std::uint64_t sum = 0;
    for (const TokenId x : t) sum = sum * 5 + x;
    const NodeId n = index.find(root, key_of(sum), 0, t.data());
    EXPECT_EQ(n != kNoNode, children.count(t) == 1);
    if (n == kNoNode && random.chance(0.6)) {
      index.expose(index.insert(root, key_of(sum), 0, t.data()));
      children.insert(t);
    } else if (n != kNoNode && random.chance(0.6)) {
      index.hide(n);
      index.erase(n);
      children.erase(t);
    }
    for (TokenId& x : t) x = static_cast<TokenId>(random.below(4));
    std::uint32_t best = 0;
    for (const auto& c : children)
      best = std::max(best, static_cast<std::uint32_t>(
                                std::mismatch(t.begin(), t.end(), c.begin()).first - t.begin()));
    EXPECT_EQ(index.longest_child(root, 0, t).tokens, best);
  }
  index.check();
}

}  // namespace
}  // namespace quire
