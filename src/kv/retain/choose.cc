// kv/retain/choose.cc - from scores to slots: how many each lane may keep, then which.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kv/retain/budget.h"

namespace quire {
namespace retain {

Ranking::Ranking(const RetainMethod& method, const LaneScores& lanes, std::uint32_t budget)
    : scores_(lanes.scores.begin(), lanes.scores.end()), lanes_(lanes) {
  for (float& x : scores_)
    if (!(x == x)) x = std::numeric_limits<float>::lowest();
  protected_.resize(lanes.lanes());
  const auto share = static_cast<std::uint32_t>(method.recent_share * budget);
  for (std::uint32_t lane = 0; lane < lanes.lanes(); ++lane) {
    const std::uint32_t slots = lanes.slots(lane);
    const std::uint32_t sinks = std::min(method.sinks, slots);
    const std::uint32_t recent = std::min(std::max(method.recent, share), slots - sinks);
    protected_[lane] = {sinks, recent};
  }
}

void Ranking::best(std::uint32_t lane, std::uint32_t count, std::span<const float> scores,
                   std::vector<std::uint32_t>& out) const {
  const auto [sinks, recent] = protected_[lane];
  const std::uint32_t slots = lanes_.slots(lane);
  CHECK(count <= slots);
  out.clear();
  // First tokens before last ones, the newest of those first.
  for (std::uint32_t s = 0; s < sinks && out.size() < count; ++s) out.push_back(s);
  for (std::uint32_t i = 0; i < recent && out.size() < count; ++i) out.push_back(slots - 1 - i);
  const auto open = static_cast<std::uint32_t>(count - out.size());
  if (open == 0) return;
  std::vector<std::uint32_t> rest(slots - sinks - recent);
  std::iota(rest.begin(), rest.end(), sinks);
  const auto before = [&](std::uint32_t a, std::uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  if (open < rest.size()) std::nth_element(rest.begin(), rest.begin() + open, rest.end(), before);
  out.insert(out.end(), rest.begin(), rest.begin() + open);
}

}  // namespace retain

namespace {

// Half by score alone, half by score times what the value adds to the output.
void two_stages(const RetainMethod& m, const LaneScores& lanes, const retain::Ranking& ranking,
                std::uint32_t lane, std::uint32_t count, std::vector<std::uint32_t>& out) {
  const auto first = static_cast<std::uint32_t>(m.first_stage * count);
  ranking.best(lane, std::min(count, std::max(first, 1u)), ranking.scores(lane), out);
  const std::span<const float> scores = ranking.scores(lane);
  std::vector<float> weighed(scores.size());
  for (std::size_t s = 0; s < scores.size(); ++s)
    weighed[s] = (scores[s] + static_cast<float>(m.epsilon)) * lanes.weights[lanes.begin[lane] + s];
  for (std::uint32_t s : out) weighed[s] = std::numeric_limits<float>::infinity();
  ranking.best(lane, count, weighed, out);
}
}  // namespace

KeepSets choose(const RetainMethod& method, const LaneScores& lanes, std::uint32_t budget) {
  CHECK(!lanes.begin.empty() && lanes.scores.size() == lanes.begin.back());
  CHECK(lanes.kv_heads > 0 && lanes.lanes() % lanes.kv_heads == 0);
  CHECK(lanes.weights.size() == (method.weigh ? lanes.scores.size() : 0));
  KeepSets keep;
  const retain::Ranking ranking(method, lanes, budget);
  const std::vector<std::uint32_t> counts =
      retain::lane_counts(method, lanes, ranking, budget, keep.fell_back);
  const bool critical = method.first_stage < 1;
  std::vector<std::uint32_t> slots;
  keep.begin.push_back(0);
  for (std::uint32_t lane = 0; lane < lanes.lanes(); ++lane) {
    if (critical)
      two_stages(method, lanes, ranking, lane, counts[lane], slots);
    else
      ranking.best(lane, counts[lane], ranking.scores(lane), slots);
    std::sort(slots.begin(), slots.end());
    keep.slots.insert(keep.slots.end(), slots.begin(), slots.end());
    keep.begin.push_back(static_cast<std::uint32_t>(keep.slots.size()));
  }
  return keep;
}

std::uint32_t budget_slots(std::uint32_t n, double share) {
  CHECK(share >= 0 && share <= 1);
  return std::min(n, std::max(1u, static_cast<std::uint32_t>(n * share)));
}

}  // namespace quire
