#include "engine/compaction.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>

#include "engine/lane_rows.h"
#include "kv/retain/policy.h"

namespace quire {
namespace {

// Some formats encode the tokens of a block together, so a lane keeps or drops whole pages. It
// keeps as many pages as its budget allows: those with most chosen slots, and the lower page among
// equals. The first page stays if the method keeps first tokens. Slots behind the last whole page
// stay.
KeepSets whole_pages(const KeepSets& chosen, const LaneScores& lanes, std::uint32_t sinks,
                     std::uint32_t per_page) {
  KeepSets out;
  out.begin = {0};
  for (std::uint32_t lane = 0; lane + 1 < lanes.begin.size(); ++lane) {
    const std::uint32_t slots = lanes.begin[lane + 1] - lanes.begin[lane];
    const std::uint32_t pages = slots / per_page;
    std::vector<std::uint32_t> held(pages), order(pages);
    for (const std::uint32_t slot : chosen.lane(lane))
      if (slot / per_page < pages) ++held[slot / per_page];
    if (sinks > 0 && pages > 0) held[0] = per_page + 1;
    std::iota(order.begin(), order.end(), 0u);
    std::ranges::stable_sort(order, std::greater<>(), [&](std::uint32_t p) { return held[p]; });
    const auto budget = static_cast<std::uint32_t>(chosen.lane(lane).size()) / per_page;
    order.resize(std::min(pages, std::max(1u, budget)));
    std::ranges::sort(order);
    for (const std::uint32_t page : order)
      for (std::uint32_t i = 0; i < per_page; ++i) out.slots.push_back(page * per_page + i);
    for (std::uint32_t slot = pages * per_page; slot < slots; ++slot) out.slots.push_back(slot);
    out.begin.push_back(static_cast<std::uint32_t>(out.slots.size()));
  }
  return out;
}

}  // namespace

Compaction::Compaction(const Runtime& runtime, const Sequence& s,
                       std::span<const std::uint32_t> layers, RetainMethod method,
                       const LaneScoring& scored, std::uint32_t budget)
    : layers_(layers.begin(), layers.end()) {
  const std::uint32_t per_block = runtime.geometry().tokens_per_block;
  const std::uint32_t kv_heads = runtime.config().kv_heads;
  end_ = s.length() / per_block * per_block;
  method.recent = std::max(method.recent, s.length() - end_);
  KeepSets keep = choose(method, scored.view(), budget);
  const Geometry& geometry = runtime.cache().geometry(s.root());
  const LayerGroup& g = geometry.groups[geometry.places[layers_[0]].group];
  if (!g.format->slots_stand_alone(geometry.page_shape(g)))
    keep = whole_pages(keep, scored.view(), method.sinks, per_block);
  tokens_.resize(layers_.size() * kv_heads);
  held_.begin = {0};
  for (std::uint32_t lane = 0; lane < tokens_.size(); ++lane) {
    const std::vector<std::uint32_t> had =
        lane_tokens(runtime, s, layers_[lane / kv_heads], lane % kv_heads);
    for (const std::uint32_t slot : keep.lane(lane))
      if (had[slot] < end_) {
        tokens_[lane].push_back(had[slot]);
        held_.slots.push_back(slot);
      }
    // Tokens of the open block stay, whatever was chosen.
    for (auto t = std::ranges::lower_bound(had, end_); t != had.end(); ++t)
      held_.slots.push_back(static_cast<std::uint32_t>(t - had.begin()));
    held_.begin.push_back(static_cast<std::uint32_t>(held_.slots.size()));
  }
}

bool Compaction::merge_some(Runtime& runtime, const Sequence& s, const Merger& merger,
                            const Observer& observer, std::span<MergeState> states,
                            double& operations) {
  const std::uint32_t kv_heads = runtime.config().kv_heads, dim = runtime.config().head_dim;
  merged_.resize(tokens_.size());
  for (; merge_lane_ < tokens_.size() && operations > 0; ++merge_lane_) {
    const std::uint32_t lane = merge_lane_;
    LaneRows rows = lane_rows(runtime, s, layers_[lane / kv_heads], lane % kv_heads,
                              {.values = true}, {0, end_});
    std::vector<std::uint32_t> keep;
    for (const std::uint32_t t : tokens_[lane])
      keep.push_back(static_cast<std::uint32_t>(std::ranges::lower_bound(rows.tokens, t) -
                                                rows.tokens.begin()));
    std::vector<float> mass = observer.mass(lane);
    mass.resize(rows.tokens.size());
    MergeInput in{.slots = static_cast<std::uint32_t>(rows.tokens.size()),
                  .key_dim = dim,
                  .value_dim = dim,
                  .keep = keep,
                  .mass = mass,
                  .seed = 1,
                  .lane = lane,
                  .first_token = 0};
    if (merger.by_nearest && !search_some(runtime, in, rows.keys, operations)) return false;
    in.nearest = nearest_;
    merger.merge(in, states[lane], rows.keys, rows.values);
    operations -= 16.0 * dim * in.slots;
    nearest_.clear();
    Rows& to = merged_[lane];
    for (const std::uint32_t slot : keep) {
      const auto at = static_cast<std::ptrdiff_t>(std::size_t{slot} * dim);
      to.keys.insert(to.keys.end(), rows.keys.begin() + at, rows.keys.begin() + at + dim);
      to.values.insert(to.values.end(), rows.values.begin() + at, rows.values.begin() + at + dim);
    }
  }
  return merge_lane_ == tokens_.size();
}

// Searches for the nearest kept keys of more tokens of the lane, on all threads. True: of all.
bool Compaction::search_some(Runtime& runtime, const MergeInput& in, std::span<const float> keys,
                             double& operations) {
  constexpr std::uint32_t kAtOnce = 16;  // for one thread
  const std::vector<std::uint32_t> slots = leaving_slots(in);
  // A product and a sum that waits for the one before.
  const double cost = std::max(1.0, 4.0 * in.key_dim * static_cast<double>(in.keep.size()));
  const std::size_t first = nearest_.size();
  const double wanted = std::max(operations / cost, double{kAtOnce} * runtime.pool().size());
  const auto count =
      static_cast<std::size_t>(std::min(wanted, static_cast<double>(slots.size() - first)));
  nearest_.resize(first + count);
  std::atomic<std::size_t> next{first};
  runtime.pool().run([&](ThreadPool::Worker) {
    for (std::size_t i; (i = next.fetch_add(kAtOnce)) < first + count;) {
      const std::size_t n = std::min<std::size_t>(kAtOnce, first + count - i);
      find_nearest_kept(in, keys, std::span(slots).subspan(i, n),
                        std::span(nearest_).subspan(i, n));
    }
  });
  operations -= cost * static_cast<double>(count);
  return nearest_.size() == slots.size();
}

Status Compaction::carry_out(Runtime& runtime, Sequence& s) {
  const Geometry& geometry = runtime.cache().geometry(s.root());
  const std::uint32_t kv_heads = runtime.config().kv_heads;
  for (; group_ < geometry.groups.size(); ++group_) {
    const LayerGroup& g = geometry.groups[group_];
    if (!retains(g)) continue;
    std::vector<std::span<const std::uint32_t>> keep;
    for (const std::uint32_t layer : g.layers) {
      const auto index =
          static_cast<std::size_t>(std::ranges::lower_bound(layers_, layer) - layers_.begin());
      for (std::uint32_t h = 0; h < kv_heads; ++h) keep.emplace_back(tokens_[index * kv_heads + h]);
    }
    TRY_STATUS(runtime.cache().compact(s, group_, end_, keep));
    began_ = true;
  }
  for (std::uint32_t lane = 0; lane < merged_.size(); ++lane) {
    const LayerPlace place = geometry.places[layers_[lane / kv_heads]];
    TRY_STATUS(runtime.cache().own_lane(s, place.group, place.index * kv_heads + lane % kv_heads));
  }
  for (std::uint32_t lane = 0; lane < merged_.size(); ++lane)
    write_lane(runtime, s, layers_[lane / kv_heads], lane % kv_heads, merged_[lane].keys,
               merged_[lane].values);
  return {};
}

}  // namespace quire
