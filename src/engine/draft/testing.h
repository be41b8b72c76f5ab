// engine/draft/testing.h - a source for tests that has been told how answers go on, and lies now and
// then. So drafts of all lengths are accepted and rejected at all places.
//
//   options.drafts.source = [&](const DraftScene&) {
//     return std::make_unique<Prophet>(texts, Prophet::Lies{.often = 0.3}, Random(1));
//   };
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/draft/source.h"

namespace quire {

class Prophet final : public DraftSource {
 public:
  using Texts = std::vector<std::vector<TokenId>>;  // prompts with their answers
  struct Lies {
    double often = 0;  // that a token is wrong
    TokenId least = 'a', count = 26;
  };
  Prophet(std::shared_ptr<const Texts> texts, Lies lies, Random random)
      : texts_(std::move(texts)), lies_(lies), random_(random) {}

  std::unique_ptr<DraftSource> fork() const override { return std::make_unique<Prophet>(*this); }

  Guess guess(const Sequence&, std::span<const TokenId> known, std::uint32_t count,
              std::vector<TokenId>& tokens) override {
    const auto lie = [&] { return lies_.least + static_cast<TokenId>(random_.below(lies_.count)); };
    count = 1 + static_cast<std::uint32_t>(random_.below(count));
    for (const std::vector<TokenId>& text : *texts_) {
      if (text.size() < known.size() || !std::equal(known.begin(), known.end(), text.begin()))
        continue;
      for (std::size_t i = known.size(); i < text.size() && count > 0; ++i, --count)
        tokens.push_back(random_.chance(lies_.often) ? lie() : text[i]);
      break;
    }
    for (; count > 0; --count) tokens.push_back(lie());
    return {1};
  }

 private:
  std::shared_ptr<const Texts> texts_;
  Lies lies_;
  Random random_;
};

}  // namespace quire
