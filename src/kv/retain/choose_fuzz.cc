// choose() against sorting everything: few distinct scores, so that ties abound, and lanes of any
// length.
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "base/check.h"
#include "kv/retain/retain.h"

using namespace quire;

namespace {

void no_weights(const RetainMethod&, const RetainInput&, std::span<float>) {}

// The lane's slots, best first.
std::vector<std::uint32_t> order_of(const RetainMethod& m, const LaneScores& lanes,
                                    std::uint32_t lane, std::uint32_t budget) {
  const std::uint32_t slots = lanes.slots(lane), sinks = std::min(m.sinks, slots);
  const std::uint32_t recent = std::min(
      std::max(m.recent, static_cast<std::uint32_t>(m.recent_share * budget)), slots - sinks);
  std::vector<std::tuple<int, double, std::uint32_t>> keys;
  for (std::uint32_t s = 0; s < slots; ++s) {
    const float x = lanes.lane(lane)[s];
    if (s < sinks)
      keys.emplace_back(0, 0, s);
    else if (s >= slots - recent)
      keys.emplace_back(1, slots - s, s);
    else
      keys.emplace_back(2, std::isnan(x) ? 1e300 : -x, s);
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::uint32_t> order;
  for (const auto& [kind, key, slot] : keys) order.push_back(slot);
  return order;
}

// Counts by taking the best entry of all lanes, one at a time.
std::vector<std::uint32_t> pooled(const RetainMethod& m, const LaneScores& lanes,
                                  std::uint32_t first, std::uint32_t end, std::uint32_t budget,
                                  std::uint32_t sure) {
  std::vector<std::uint32_t> counts;
  std::vector<std::vector<std::uint32_t>> orders;
  std::uint64_t left = std::uint64_t{budget} * (end - first);
  const auto guarded = [&](std::uint32_t lane) {
    const std::uint32_t slots = lanes.slots(lane), sinks = std::min(m.sinks, slots);
    return sinks + std::min(std::max(m.recent, static_cast<std::uint32_t>(m.recent_share * budget)),
                            slots - sinks);
  };
  for (std::uint32_t lane = first; lane < end; ++lane) {
    orders.push_back(order_of(m, lanes, lane, budget));
    counts.push_back(std::min({lanes.slots(lane), budget, std::max(sure, guarded(lane))}));
    left -= counts.back();
  }
  for (; left > 0; --left) {
    std::uint32_t best = end;
    std::tuple<double, std::uint32_t> best_key;
    for (std::uint32_t lane = first; lane < end; ++lane) {
      const std::uint32_t i = lane - first;
      if (counts[i] == orders[i].size()) continue;
      const std::uint32_t slot = orders[i][counts[i]];
      const float x = lanes.lane(lane)[slot];
      const double score = counts[i] < guarded(lane) ? -1e301 : std::isnan(x) ? 1e300 : -x;
      const std::tuple<double, std::uint32_t> key{score,
                                                  counts[i] < guarded(lane) ? counts[i] : slot};
      if (best == end || key < best_key) best = lane, best_key = key;
    }
    if (best == end) break;
    ++counts[best - first];
  }
  return counts;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 8) return 0;
  RetainMethod m = {.rule = static_cast<BudgetRule>(data[0] % 7),
                    .sinks = data[1] % 5u,
                    .recent = data[2] % 5u,
                    .recent_share = data[2] & 128 ? 0.5 : 0.0,
                    .floor_share = 0.2};
  const std::uint32_t heads = 1 + data[3] % 3, budget = data[4] % 24;
  const bool ragged = (data[5] & 1) != 0 && m.rule != BudgetRule::composite;
  std::vector<std::uint32_t> begin = {0};
  std::vector<float> scores, weights;
  std::size_t at = 6;
  const std::uint32_t lane_count = heads * (1 + data[5] / 2 % 3);
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
    const std::uint32_t slots = ragged ? data[at++ % size] % 20 : data[6] % 20;
    for (std::uint32_t s = 0; s < slots; ++s) {
      const std::uint8_t b = data[at++ % size];
      scores.push_back(b == 255 ? std::numeric_limits<float>::quiet_NaN()
                                : static_cast<float>(b % 9) / 2);
      weights.push_back(static_cast<float>(b / 9));
    }
    begin.push_back(static_cast<std::uint32_t>(scores.size()));
  }
  const bool weighs = m.rule == BudgetRule::split || m.rule == BudgetRule::profile;
  if (weighs) m.weigh = no_weights;
  const LaneScores lanes{
      heads, scores, weighs ? std::span<const float>(weights) : std::span<const float>{}, begin};
  const KeepSets keep = choose(m, lanes, budget);

  std::uint64_t covered = 0;
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) covered += lanes.slots(lane) <= budget;
  CHECK(keep.slots.size() <= std::uint64_t{budget} * lane_count);
  if (covered == lane_count) CHECK(keep.slots.size() == scores.size());
  std::vector<std::uint32_t> counts;
  if (m.rule == BudgetRule::global) counts = pooled(m, lanes, 0, lane_count, budget, 0);
  if (m.rule == BudgetRule::adaptive)
    for (std::uint32_t lane = 0; lane < lane_count; lane += heads)
      for (std::uint32_t c : pooled(m, lanes, lane, lane + heads, budget,
                                    std::max(1u, static_cast<std::uint32_t>(0.2 * budget))))
        counts.push_back(c);
  for (std::uint32_t lane = 0; lane < lane_count; ++lane) {
    const auto slots = keep.lane(lane);
    if (m.rule == BudgetRule::uniform) CHECK(slots.size() == std::min(budget, lanes.slots(lane)));
    if (!counts.empty()) CHECK(slots.size() == counts[lane]);
    // Whatever the rule, a lane keeps the best of its own order.
    std::vector<std::uint32_t> best = order_of(m, lanes, lane, budget);
    best.resize(slots.size());
    std::sort(best.begin(), best.end());
    CHECK(std::equal(best.begin(), best.end(), slots.begin(), slots.end()));
  }
  return 0;
}
