#include "server/bad_words.h"

#include <algorithm>

namespace quire {

BadWords::BadWords(const Tokenizer& tokenizer, std::span<const std::string> words,
                   std::unique_ptr<TokenMask> inner)
    : inner_(std::move(inner)) {
  auto sequences = std::make_shared<std::vector<std::vector<TokenId>>>();
  for (const std::string& word : words)
    for (const std::string& spelling : {word, " " + word}) {
      std::vector<TokenId> tokens = tokenizer.encode(spelling);
      if (tokens.empty()) continue;
      longest_ = std::max(longest_, tokens.size());
      sequences->push_back(std::move(tokens));
    }
  words_ = std::move(sequences);
}

bool BadWords::fill(std::span<std::uint32_t> bits) {
  if (!inner_ || !inner_->fill(bits)) std::ranges::fill(bits, ~std::uint32_t{0});
  for (const std::vector<TokenId>& word : *words_) {
    const std::span<const TokenId> before(word.data(), word.size() - 1);
    if (said_.size() >= before.size() &&
        std::equal(before.begin(), before.end(),
                   said_.end() - static_cast<std::ptrdiff_t>(before.size())))
      bits[word.back() / 32] &= ~(std::uint32_t{1} << word.back() % 32);
  }
  return true;
}

bool BadWords::accept(TokenId token) {
  said_.push_back(token);
  if (said_.size() + 1 > longest_) said_.erase(said_.begin());
  return !inner_ || inner_->accept(token);
}

std::unique_ptr<TokenMask> BadWords::fork() const {
  auto copy = std::unique_ptr<BadWords>(new BadWords());
  copy->words_ = words_;
  copy->longest_ = longest_;
  copy->said_ = said_;
  if (inner_) copy->inner_ = inner_->fork();
  return copy;
}

}  // namespace quire
