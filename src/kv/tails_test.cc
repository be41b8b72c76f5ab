// How cached texts went on.
#include "kv/cache_testing.h"

namespace quire {
namespace {

class TailsTest : public CacheTest {
 protected:
  void SetUp() override {
    CacheTest::SetUp();
    cache->remember_tails();
  }
  std::vector<TokenId> next(const Sequence& s, const std::vector<TokenId>& known,
                            std::uint32_t count) {
    std::vector<TokenId> tokens;
    evidence = cache->continue_text(s, known, count, tokens);
    return tokens;
  }
  std::uint32_t evidence = 0;
};

TEST_F(TailsTest, AnyFewTokensLeadToWhatFollowedThem) {
  run(tokens_from(1, 33)).close();
  Sequence asking = open();
  std::vector<TokenId> known = tokens_from(500, 9);
  for (const TokenId t : tokens_from(6, 7)) known.push_back(t);  // 6..12
  EXPECT_EQ(next(asking, known, 5), tokens_from(13, 5));
  EXPECT_EQ(evidence, 7u);
  EXPECT_EQ(next(asking, tokens_from(1, 31), 9),
            tokens_from(32, 1));  // a last open block is private
  EXPECT_EQ(evidence, 24u);
  EXPECT_TRUE(next(asking, tokens_from(9, 5), 5).empty());    // too few to go by
  EXPECT_TRUE(next(asking, tokens_from(900, 9), 5).empty());  // never seen
}

TEST_F(TailsTest, RootsAndSaltsKeepApart) {
  const std::vector<KeyChange> salt = {{.position = 0, .kind = ChangeKind::salt, .value = "s"}};
  run(tokens_from(1, 33), {.changes = salt}).close();
  Sequence plain = open(), salted = open({.changes = salt});
  cache->attach(plain, tokens_from(50, 9));
  cache->attach(salted, tokens_from(50, 9));
  EXPECT_TRUE(next(plain, tokens_from(1, 12), 4).empty());
  EXPECT_EQ(next(salted, tokens_from(1, 12), 4), tokens_from(13, 4));
}

TEST_F(TailsTest, WhatWasEvictedIsForgotten) {
  run(tokens_from(1, 33)).close();
  Sequence asking = open();
  cache->clear(true);
  EXPECT_TRUE(next(asking, tokens_from(1, 12), 4).empty());
  run(tokens_from(200, 33)).close();  // takes the nodes
  EXPECT_TRUE(next(asking, tokens_from(1, 12), 4).empty());
  EXPECT_EQ(next(asking, tokens_from(200, 12), 4), tokens_from(212, 4));
}

// Nothing of a text that may not be left for others is found.
TEST_F(TailsTest, PrivateTextsAreNotFound) {
  run(tokens_from(1, 33), {.publish = false}).close();
  Sequence asking = open();
  EXPECT_TRUE(next(asking, tokens_from(1, 12), 4).empty());
}

}  // namespace
}  // namespace quire
