// engine/draft/pace.h - how long drafts are: as many rows as pay, by what steps were measured to cost.
//
//   pace.add(9, 12'000'000);                   // a step of 9 rows took so many ns
//   pace.choose(1, offers);                    // of a step with 1 row besides: sets offers[i].take
//
// Tokens per second of the step are made as large as they can be. A gain below 2 % is none. What is
// measured too rarely is tried now and then.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// Tokens of a draft that come true, where each does so with this probability if those before it did.
double expected_right(double rate, std::uint32_t length);

struct DraftOffer {
  std::uint32_t row;     // of the step
  std::uint32_t length;  // at most
  double rate;
  std::uint32_t take = 0;
};

class DraftPace {
 public:
  void add(std::uint32_t rows, double ns);
  // Of a step with `rows` rows without drafts and at most `most` rows of drafts.
  void choose(std::uint32_t rows, std::uint32_t most, std::span<DraftOffer> offers);
  double step_ns(std::uint32_t rows) const;  // expected; 0: nothing was measured

 private:
  struct Measured {
    double ns = 0;           // decayed average; 0: never
    std::uint64_t when = 0;  // the step that last had so many rows
  };
  static constexpr std::size_t kSizes = 40;
  static std::size_t index_of(std::uint32_t rows);
  static double rows_of(std::size_t index);
  void try_some(std::span<DraftOffer> offers);

  std::array<Measured, kSizes> sizes_;
  std::uint64_t steps_ = 0, drafted_ = 0;  // steps there were, and the last with a draft
  struct Candidate {
    double chance;
    std::uint32_t offer;
  };
  std::vector<Candidate> candidates_;
};

}  // namespace quire
