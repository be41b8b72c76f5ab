#include "server/bad_words.h"

#include <gtest/gtest.h>

#include "text/tiny_vocab.h"

namespace quire {
namespace {

bool allowed(TokenMask& mask, TokenId token) {
  std::vector<std::uint32_t> bits(16);
  EXPECT_TRUE(mask.fill(bits));
  return bits[token / 32] >> token % 32 & 1;
}

TEST(BadWords, LastTokenIsForbiddenOnlyAfterTheOthers) {
  const Tokenizer tokenizer = std::move(Tokenizer::create(tiny_byte_level()).value());
  const std::vector<std::string> words{"ab", "x"};
  BadWords mask(tokenizer, words, nullptr);
  EXPECT_FALSE(allowed(mask, 'x'));
  EXPECT_TRUE(allowed(mask, 'b'));
  EXPECT_TRUE(mask.accept('a'));
  EXPECT_FALSE(allowed(mask, 'b'));
  EXPECT_TRUE(allowed(mask, 'a'));
  const auto other = mask.fork();
  EXPECT_TRUE(mask.accept('c'));
  EXPECT_TRUE(allowed(mask, 'b'));
  EXPECT_FALSE(allowed(*other, 'b'));
}

// Allows one token and wants no second.
class OnlyOnce final : public TokenMask {
 public:
  bool fill(std::span<std::uint32_t> bits) override {
    std::ranges::fill(bits, 0u);
    bits['x' / 32] |= 1u << 'x' % 32;
    bits['y' / 32] |= 1u << 'y' % 32;
    return true;
  }
  bool accept(TokenId) override { return false; }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<OnlyOnce>(); }
};

TEST(BadWords, GoesAroundAnotherMask) {
  const Tokenizer tokenizer = std::move(Tokenizer::create(tiny_byte_level()).value());
  const std::vector<std::string> words{"x"};
  BadWords mask(tokenizer, words, std::make_unique<OnlyOnce>());
  EXPECT_FALSE(allowed(mask, 'x'));
  EXPECT_TRUE(allowed(mask, 'y'));
  EXPECT_FALSE(allowed(mask, 'z'));
  EXPECT_FALSE(mask.accept('y'));
}

}  // namespace
}  // namespace quire
