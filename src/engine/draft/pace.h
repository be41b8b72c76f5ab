// engine/draft/pace.h - chooses how long drafts are, by the measured time of steps.
//
//   pace.add(9, 12'000'000);                   // a step of 9 rows took 12 ms
//   pace.choose(1, offers);                    // of a step with 1 row besides: sets offers[i].take
//
// The step's expected tokens per second are maximized. A gain below 2 % does not count. Measurements
// have noise, and a size may seem cheap by chance: a row is taken to cost at least 80 % of what rows
// cost on average over all sizes. Sizes that are rarely measured are tried now and then.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace quire {

// The expected number of right tokens of a draft, if each is right with this probability when those
// before it are.
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
    std::uint64_t when = 0;  // the last step of this size
  };
  static constexpr std::size_t kSizes = 40;
  static std::size_t index_of(std::uint32_t rows);
  static double rows_of(std::size_t index);
  double row_ns() const;  // the average cost of a row, over all sizes; 0: unknown
  void try_some(std::span<DraftOffer> offers);

  std::array<Measured, kSizes> sizes_;
  std::uint64_t steps_ = 0, drafted_ = 0;  // steps there were, and the last with a draft
  double count_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;  // sums over steps, decayed
  struct Candidate {
    double chance;
    std::uint32_t offer;
  };
  std::vector<Candidate> candidates_;
};

}  // namespace quire
