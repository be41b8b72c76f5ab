// engine/draft/rates.h - how often guesses come true, by how much spoke for them: decayed counts.
//
// The engine has one of each source; an answer has its own, which counts more as it grows.
//
//   rates.add(guess.evidence, 5, 8);              // 5 of 8 tokens were right
//   rates.of(guess.evidence, source_rates);       // of the next token, if those before it were right
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace quire {

class DraftRates {
 public:
  // What a guess with this much evidence is worth; nothing known: as `prior` says.
  double of(std::uint32_t evidence, double prior) const {
    constexpr double kPriorWeight = 3;
    const Count& c = counts_[level(evidence)];
    return (c.right + kPriorWeight * prior) / (c.tried + kPriorWeight);
  }
  // `right` tokens of a draft came true, and then one was wrong, if there were more of them.
  void add(std::uint32_t evidence, std::uint32_t right, std::uint32_t length) {
    constexpr double kKeep = 0.9;
    Count& c = counts_[level(evidence)];
    c.right = c.right * kKeep + right;
    c.tried = c.tried * kKeep + std::min(right + 1, length);
  }

 private:
  struct Count {
    double right = 0, tried = 0;
  };
  static std::size_t level(std::uint32_t evidence) {  // 1, 2-3, 4-7, 8-15, 16 and more
    return std::min<std::size_t>(std::bit_width(evidence), kLevels) - (evidence > 0);
  }
  static constexpr std::size_t kLevels = 5;
  std::array<Count, kLevels> counts_;
};

}  // namespace quire
