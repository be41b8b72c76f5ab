#include "kv/retain/budget.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

namespace quire::retain {
namespace {
using Counts = std::vector<std::uint32_t>;

struct Task {
  const RetainMethod& method;
  const LaneScores& lanes;
  const Ranking& ranking;
  std::uint32_t budget;
};

Counts uniform(const Task& t) {
  Counts counts(t.lanes.lanes());
  for (std::uint32_t lane = 0; lane < counts.size(); ++lane)
    counts[lane] = std::min(t.budget, t.lanes.slots(lane));
  return counts;
}

// Beyond the observed window, layer l keeps high - l * (high - low) / (L - 1) slots; high and low
// average to the budget.
Counts pyramid(const Task& t, bool& fell_back) {
  const std::uint32_t heads = t.lanes.kv_heads, layers = t.lanes.lanes() / heads;
  const std::uint32_t slots = t.lanes.slots(0), window = t.ranking.protected_count(0);
  fell_back = t.budget <= window || layers < 2;
  for (std::uint32_t lane = 0; lane < t.lanes.lanes(); ++lane)
    fell_back |= t.lanes.slots(lane) != slots;
  if (fell_back) return uniform(t);
  const double base = t.budget - window;
  double low = base / t.method.pyramid_slope, high = 2 * base - low;
  if (high >= slots - window) {
    high = slots - window;
    low = 2 * base - high;
  }
  Counts counts(t.lanes.lanes());
  for (std::uint32_t lane = 0; lane < counts.size(); ++lane) {
    const double step = (high - low) / (layers - 1);
    counts[lane] = window + static_cast<std::uint32_t>(high - lane / heads * step + 1e-9);
  }
  return counts;
}

// The best slots of lanes [first, end) together; `sure` of each lane are granted beforehand.
void pool(const Task& t, std::uint32_t first, std::uint32_t end, std::uint32_t sure,
          Counts& counts) {
  struct Entry {
    float score;
    std::uint32_t slot, lane;
  };
  std::vector<Entry> entries;
  std::vector<std::uint32_t> granted;
  std::vector<bool> taken;
  std::uint64_t left = std::uint64_t{t.budget} * (end - first);
  for (std::uint32_t lane = first; lane < end; ++lane) {
    const std::uint32_t slots = t.lanes.slots(lane);
    counts[lane] = std::min({slots, t.budget, std::max(sure, t.ranking.protected_count(lane))});
    left -= counts[lane];
    const std::span<const float> scores = t.ranking.scores(lane);
    t.ranking.best(lane, counts[lane], scores, granted);
    taken.assign(slots, false);
    for (std::uint32_t s : granted) taken[s] = true;
    // Protected slots that exceeded the budget still rank above every score.
    const Protected& p = t.ranking.protected_of(lane);
    for (std::uint32_t rank = counts[lane]; rank < p.sinks + p.recent; ++rank)
      entries.push_back({std::numeric_limits<float>::infinity(), rank, lane});
    for (std::uint32_t s = p.sinks; s + p.recent < slots; ++s)
      if (!taken[s]) entries.push_back({scores[s], s, lane});
  }
  if (left < entries.size())
    std::nth_element(entries.begin(), entries.begin() + static_cast<std::ptrdiff_t>(left),
                     entries.end(), [](const Entry& a, const Entry& b) {
                       if (a.score != b.score) return a.score > b.score;
                       return a.slot != b.slot ? a.slot < b.slot : a.lane < b.lane;
                     });
  for (std::size_t i = 0; i < std::min<std::size_t>(left, entries.size()); ++i)
    ++counts[entries[i].lane];
}

Counts adaptive_counts(const Task& t) {
  Counts counts(t.lanes.lanes());
  const auto sure = static_cast<std::uint32_t>(t.method.floor_share * t.budget);
  for (std::uint32_t lane = 0; lane < counts.size(); lane += t.lanes.kv_heads)
    pool(t, lane, lane + t.lanes.kv_heads, std::max(1u, sure), counts);
  return counts;
}

// A layer's curve: its heads' scores in falling order, averaged rank by rank. Layers compete for
// ranks, and the first takes the best curve of all, so that it keeps most.
Counts composite(const Task& t) {
  const std::uint32_t heads = t.lanes.kv_heads, layers = t.lanes.lanes() / heads;
  const std::uint32_t slots = t.lanes.slots(0);
  std::vector<float> curves(std::size_t{layers} * slots), sorted;
  for (std::uint32_t lane = 0; lane < t.lanes.lanes(); ++lane) {
    CHECK(t.lanes.slots(lane) == slots);
    const std::span<const float> scores = t.ranking.scores(lane);
    sorted.assign(scores.begin(), scores.end());
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (std::uint32_t r = 0; r < slots; ++r)
      curves[std::size_t{lane / heads} * slots + r] += sorted[r] / static_cast<float>(heads);
  }
  for (std::uint32_t layer = 1; layer < layers; ++layer)
    for (std::uint32_t r = 0; r < slots; ++r)
      curves[r] = std::max(curves[r], curves[std::size_t{layer} * slots + r]);
  std::vector<std::uint32_t> order(curves.size());
  std::iota(order.begin(), order.end(), 0u);
  const std::size_t wanted = std::size_t{t.budget} * layers;
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) {
                     if (curves[a] != curves[b]) return curves[a] > curves[b];
                     return a % slots != b % slots ? a % slots < b % slots : a < b;
                   });
  Counts counts(t.lanes.lanes());
  for (std::size_t i = 0; i < wanted; ++i)
    for (std::uint32_t h = 0; h < heads; ++h) ++counts[order[i] / slots * heads + h];
  return counts;
}

// As many lanes as fit keep everything, those with the highest gates; the others their protected
// slots.
Counts split(const Task& t) {
  Counts counts(t.lanes.lanes()), order(t.lanes.lanes());
  std::uint64_t left = std::uint64_t{t.budget} * counts.size();
  for (std::uint32_t lane = 0; lane < counts.size(); ++lane) {
    counts[lane] = std::min(t.budget, t.ranking.protected_count(lane));
    left -= counts[lane];
  }
  const auto gate = [&](std::uint32_t lane) {
    return t.lanes.slots(lane) > 0 ? t.lanes.weights[t.lanes.begin[lane]] : 0;
  };
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return gate(a) > gate(b); });
  for (std::uint32_t lane : order) {
    const std::uint32_t more = t.lanes.slots(lane) - counts[lane];
    if (more > left) break;
    counts[lane] += more;
    left -= more;
  }
  return counts;
}

// The whole part of a score names the set that a slot is in. Each lane gets the smallest union of
// sets that recovers the threshold of its attention. If that exceeds the budget, the threshold is
// lowered until it fits.
Counts profile(const Task& t) {
  constexpr std::uint32_t kSets = 5;
  struct Set {
    std::uint32_t size = 0;
    double recovered = 0;
  };
  const std::uint32_t lanes = t.lanes.lanes();
  std::vector<std::array<Set, kSets>> sets(lanes);
  std::vector<double> thresholds = {t.method.threshold};
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    const std::span<const float> scores = t.ranking.scores(lane);
    double all = 0;
    for (std::uint32_t s = 0; s < scores.size(); ++s) {
      const double mass = t.lanes.weights[t.lanes.begin[lane] + s];
      const auto tier = static_cast<std::uint32_t>(std::clamp(scores[s], 0.0f, 4.5f));
      for (std::uint32_t i = 4 - tier; i < kSets; ++i) {
        ++sets[lane][i].size;
        sets[lane][i].recovered += mass;
      }
      all += mass;
    }
    for (Set& set : sets[lane]) {
      set.recovered = all > 0 ? set.recovered / all : 0;
      if (set.recovered < t.method.threshold) thresholds.push_back(set.recovered);
    }
  }
  std::sort(thresholds.begin(), thresholds.end(), std::greater<>());
  Counts counts(lanes);
  const auto total = [&](double threshold) {
    std::uint64_t sum = 0;
    for (std::uint32_t lane = 0; lane < lanes; ++lane) {
      const auto enough = std::find_if(sets[lane].begin(), sets[lane].end() - 1,
                                       [&](const Set& s) { return s.recovered >= threshold; });
      sum += counts[lane] = enough->size;
    }
    return sum;
  };
  const std::uint64_t most = std::uint64_t{t.budget} * lanes;
  const auto fits = std::partition_point(thresholds.begin(), thresholds.end(),
                                         [&](double x) { return total(x) > most; });
  if (total(fits == thresholds.end() ? thresholds.back() : *fits) > most)
    for (std::uint32_t& count : counts) count = std::min(count, t.budget);
  return counts;
}
}  // namespace

std::vector<std::uint32_t> lane_counts(const RetainMethod& method, const LaneScores& lanes,
                                       const Ranking& ranking, std::uint32_t budget,
                                       bool& fell_back) {
  const Task t{method, lanes, ranking, budget};
  bool all = true;
  for (std::uint32_t lane = 0; lane < lanes.lanes(); ++lane) all &= lanes.slots(lane) <= budget;
  if (all) return uniform(t);
  switch (method.rule) {
    case BudgetRule::uniform:
      return uniform(t);
    case BudgetRule::pyramid:
      return pyramid(t, fell_back);
    case BudgetRule::adaptive:
      return adaptive_counts(t);
    case BudgetRule::global: {
      std::vector<std::uint32_t> counts(lanes.lanes());
      pool(t, 0, lanes.lanes(), 0, counts);
      return counts;
    }
    case BudgetRule::composite:
      return composite(t);
    case BudgetRule::split:
      return split(t);
    case BudgetRule::profile:
      return profile(t);
  }
  CHECK(false);
  return {};
}

}  // namespace quire::retain
