// server/bad_words.h - words that an answer must not contain: a TokenMask that forbids the last
// token of a word when the answer ends with all tokens before it. It may wrap another mask.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace quire {

class BadWords final : public TokenMask {
 public:
  // Each word as it is spelled alone and after a space.
  BadWords(const Tokenizer& tokenizer, std::span<const std::string> words,
           std::unique_ptr<TokenMask> inner);

  bool fill(std::span<std::uint32_t> bits) override;
  bool accept(TokenId token) override;
  std::unique_ptr<TokenMask> fork() const override;

 private:
  BadWords() = default;

  std::shared_ptr<const std::vector<std::vector<TokenId>>> words_;
  std::size_t longest_ = 0;
  std::vector<TokenId> said_;  // the last `longest_` - 1 tokens
  std::unique_ptr<TokenMask> inner_;
};

}  // namespace quire
