// engine/compaction.h - one compaction of a sequence: what stays, decided from scores, and doing it.
//
//   Compaction c(runtime, s, observer.layers(), method, scored, budget);
//   while (!c.merge_some(runtime, s, merger, observer, states, operations)) {}     // or not
//   TRY_STATUS(c.carry_out(runtime, s));                  // no room: may be called again
//   observer.kept(c.held());
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/observer.h"
#include "kv/retain/merge.h"

namespace quire {

class Compaction {
 public:
  // Tokens of the open block stay: they count as recent.
  Compaction(const Runtime& runtime, const Sequence& s, std::span<const std::uint32_t> layers,
             RetainMethod method, const LaneScoring& scored, std::uint32_t budget);

  std::size_t lanes() const { return tokens_.size(); }
  // Tokens that leave are folded into those that stay, as the merger says. States are by lane.
  // Does about this many operations of it and takes them from the number. True: all is done.
  bool merge_some(Runtime& runtime, const Sequence& s, const Merger& merger,
                  const Observer& observer, std::span<MergeState> states, double& operations);
  Status carry_out(Runtime& runtime, Sequence& s);

  bool began() const { return began_; }  // some tokens have been dropped already
  const KeepSets& held() const {
    return held_;
  }  // of the slots that lanes had, those they have now

 private:
  bool search_some(Runtime& runtime, const MergeInput& in, std::span<const float> keys,
                   double& operations);
  struct Rows {
    std::vector<float> keys, values;
  };
  std::vector<std::uint32_t> layers_;
  std::uint32_t end_ = 0;                           // tokens before it are in lanes afterwards
  std::vector<std::vector<std::uint32_t>> tokens_;  // by lane
  std::vector<Rows> merged_;          // by lane, of those tokens; none without merging
  std::uint32_t merge_lane_ = 0;      // lanes before it are merged
  std::vector<NearestKept> nearest_;  // of its tokens that leave, as far as searched
  KeepSets held_;
  std::uint32_t group_ = 0;  // groups before it are done
  bool began_ = false;
};

}  // namespace quire
