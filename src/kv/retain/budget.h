// kv/retain/budget.h - how a budget is split over lanes, and the order of slots within one.
//
// Used by choose() alone. Every rule gives a count per lane. The slots are then the best of each
// lane by one order (protected ones, then score, then the lower slot), so that a rule which
// compares lanes and the choice within a lane cannot disagree.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "kv/retain/retain.h"

namespace quire::retain {

struct Protected {
  std::uint32_t sinks, recent;  // slots at the beginning and at the end that go first
};

class Ranking {
 public:
  Ranking(const RetainMethod& method, const LaneScores& lanes, std::uint32_t budget);

  // The lane's scores, without NaN.
  std::span<const float> scores(std::uint32_t lane) const {
    return std::span(scores_).subspan(lanes_.begin[lane], lanes_.slots(lane));
  }
  const Protected& protected_of(std::uint32_t lane) const { return protected_[lane]; }
  std::uint32_t protected_count(std::uint32_t lane) const {
    return protected_[lane].sinks + protected_[lane].recent;
  }

  // The lane's `count` best slots by these scores, in no order.
  void best(std::uint32_t lane, std::uint32_t count, std::span<const float> scores,
            std::vector<std::uint32_t>& out) const;

 private:
  std::vector<float> scores_;
  std::vector<Protected> protected_;
  const LaneScores& lanes_;
};

std::vector<std::uint32_t> lane_counts(const RetainMethod& method, const LaneScores& lanes,
                                       const Ranking& ranking, std::uint32_t budget,
                                       bool& fell_back);

}  // namespace quire::retain
