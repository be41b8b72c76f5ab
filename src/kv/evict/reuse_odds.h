// kv/evict/reuse_odds.h - how much keeping a block is worth, learned from the uses of all blocks.
//
// Blocks fall into classes by how often they were used, and whether their last reader went on past
// them. For each class it counts the blocks that became idle, and after what time they were used
// again, cached or not: so it knows the chance that a block which has been idle for some time is
// used in the next moment. From these chances follows what keeping it is
// worth: the most uses per nanosecond that any span of keeping it can bring (Gittins' index). A
// block just used can be worth less than one that was used a while ago: people read an answer
// before they ask again.
//
//   ReuseOdds odds;
//   odds.idle(cls, now);          // a block has no reader any more
//   odds.used(cls, age);          // and has one again, so much later
//   odds.update(now);             // from time to time
//   double per_ns = odds.worth(cls, age);
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace quire {

class ReuseOdds {
 public:
  static constexpr std::uint32_t kHits = 3;  // used again never, once, more often
  static constexpr std::uint32_t kClasses = 2 * kHits;
  static std::uint32_t class_of(std::uint32_t hits, bool end) {
    return (hits < kHits ? hits : kHits - 1) * 2 + end;
  }

  ReuseOdds();

  void idle(std::uint32_t cls, Nanoseconds now);
  void used(std::uint32_t cls, Nanoseconds age);  // when it was
  void update(Nanoseconds now);
  double worth(std::uint32_t cls, Nanoseconds age) const { return worth_[cls][bucket(age)]; }

 private:
  // Ages in fractions of an octave, from about a millisecond to three days.
  static constexpr int kLowest = 20, kOctaves = 28, kParts = 2;  // 2 parts make an octave
  static constexpr std::uint32_t kAges = 1 + kOctaves * kParts;
  static std::uint32_t bucket(Nanoseconds age);
  static double start_of(std::uint32_t bucket);

  struct Sample {
    Nanoseconds time;
    double idle[kClasses];
  };
  static constexpr std::size_t kSamples = 512;
  static constexpr double kForget = 4e6;  // blocks; then all counts are halved

  double idle_before(std::uint32_t cls, Nanoseconds time) const;
  void halve();

  double idle_[kClasses] = {}, total_ = 0, sampled_ = 0, step_ = 1;
  double used_[kClasses][kAges] = {};
  double worth_[kClasses][kAges];
  std::vector<Sample> samples_;  // in order of time; their number is bounded
};

}  // namespace quire
