#include "kv/retain/merge.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"
#include "kv/retain/score.h"

namespace quire {
namespace {
using retain::dot, retain::norm, retain::row_of;

constexpr std::uint32_t kCamTargets = 32;
constexpr float kSmall = 1e-6f;

// A value that leaves is shared out among the next ones that stay, with the probability that it was
// as important as they are.
void cam(const MergeInput& in, MergeState&, std::span<float>, std::span<float> values) {
  CHECK(in.mass.size() == in.slots);
  for (std::uint32_t s : leaving_slots(in)) {
    const auto first = std::upper_bound(in.keep.begin(), in.keep.end(), s);
    const auto count = std::min<std::ptrdiff_t>(kCamTargets, in.keep.end() - first);
    if (count == 0) continue;
    double mean = 0;
    for (auto t = first; t != first + count; ++t) mean += in.mass[*t] / static_cast<double>(count);
    // Nothing over nothing is no reason to merge; something over nothing is certainty.
    const double chance = in.mass[s] > 0 ? std::min(1.0, in.mass[s] / mean) : 0;
    if (counter_unit(in.seed, in.lane, in.first_token + s) >= chance) continue;
    for (auto t = first; t != first + count; ++t)
      for (std::uint32_t c = 0; c < in.value_dim; ++c)
        values[std::size_t{*t} * in.value_dim + c] +=
            values[std::size_t{s} * in.value_dim + c] / static_cast<float>(count);
  }
}

std::vector<NearestKept> nearest_kept(const MergeInput& in, std::span<const float> keys) {
  if (!in.nearest.empty()) return {in.nearest.begin(), in.nearest.end()};
  const std::vector<std::uint32_t> slots = leaving_slots(in);
  std::vector<NearestKept> out(slots.size());
  find_nearest_kept(in, keys, slots, out);
  return out;
}

// rows[target] = (rows[target] + sum of weight * rows[slot]) / (1 + sum of share), for the slots
// that merge into it.
struct Weighted {
  std::uint32_t slot, target;
  float weight, share;
};
void fold(std::span<const Weighted> merged, std::uint32_t dim, std::span<float> rows) {
  std::vector<float> sums(rows.begin(), rows.end());
  std::vector<float> shares(rows.size() / dim, 1.0f);
  for (const Weighted& m : merged) {
    shares[m.target] += m.share;
    for (std::uint32_t c = 0; c < dim; ++c)
      sums[std::size_t{m.target} * dim + c] += m.weight * rows[std::size_t{m.slot} * dim + c];
  }
  for (const Weighted& m : merged)
    for (std::uint32_t c = 0; c < dim; ++c)
      rows[std::size_t{m.target} * dim + c] =
          sums[std::size_t{m.target} * dim + c] / shares[m.target];
}

// Keys and values are averaged into the most similar kept key, unless even that is unlike: the
// threshold follows the mean of what has been seen.
void d2o(const MergeInput& in, MergeState& state, std::span<float> keys, std::span<float> values) {
  const std::vector<NearestKept> near = nearest_kept(in, keys);
  if (near.empty() || in.keep.empty()) return;
  float mean = 0;
  for (const NearestKept& n : near) mean += n.similarity / static_cast<float>(near.size());
  state.threshold = state.started ? 0.5f * mean + 0.5f * state.threshold : mean;
  state.started = true;
  std::vector<Weighted> merged;
  for (const NearestKept& n : near)
    if (n.similarity >= state.threshold)
      merged.push_back({n.slot, n.target, std::max(n.similarity, 0.0f), 1});
  fold(merged, in.key_dim, keys);
  fold(merged, in.value_dim, values);
}

// Values only, into the most similar kept key, by similarity and by how large the value is beside
// its target.
void value_merge(const MergeInput& in, MergeState&, std::span<float> keys,
                 std::span<float> values) {
  if (in.keep.empty()) return;
  std::vector<Weighted> merged;
  for (const NearestKept& n : nearest_kept(in, keys)) {
    const float own = norm(row_of(values, n.slot, in.value_dim));
    const float other = norm(row_of(values, n.target, in.value_dim));
    const float weight = std::max(n.similarity, 0.0f) * own / (own + other + kSmall);
    if (weight > 0) merged.push_back({n.slot, n.target, weight, weight});
  }
  fold(merged, in.value_dim, values);
}

constexpr Merger kCam = {"cam",
                         "CaM, ICML 2024",
                         "values are shared out among the next 32 kept ones, by lot",
                         Signal::total_mass,
                         false,
                         false,
                         cam};
constexpr Merger kD2o = {"d2o",
                         "D2O, arXiv 2406.13035",
                         "keys and values are averaged into the most similar kept key",
                         Signal::none,
                         true,
                         true,
                         d2o};
constexpr Merger kValue = {"value",
                           "after D2O and token merging, arXiv 2210.09461",
                           "values are folded into that of the most similar kept key",
                           Signal::none,
                           false,
                           true,
                           value_merge};
constexpr const Merger* kMergers[] = {&kValue, &kD2o, &kCam};
}  // namespace

std::vector<std::uint32_t> leaving_slots(const MergeInput& in) {
  std::vector<std::uint32_t> out;
  auto next = in.keep.begin();
  for (std::uint32_t s = 0; s < in.slots; ++s)
    if (next != in.keep.end() && *next == s)
      ++next;
    else
      out.push_back(s);
  return out;
}

void find_nearest_kept(const MergeInput& in, std::span<const float> keys,
                       std::span<const std::uint32_t> slots, std::span<NearestKept> out) {
  const auto size_of = [&](std::uint32_t s) {
    return std::max(norm(row_of(keys, s, in.key_dim)), kSmall);
  };
  std::vector<float> kept;
  for (const std::uint32_t t : in.keep) kept.push_back(size_of(t));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::uint32_t s = slots[i];
    const float own = size_of(s);
    NearestKept best{.slot = s};
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const std::uint32_t t = in.keep[k];
      const float similarity =
          dot(row_of(keys, s, in.key_dim), row_of(keys, t, in.key_dim)) / (own * kept[k]);
      if (similarity > best.similarity) best = {s, t, similarity};
    }
    out[i] = best;
  }
}

std::span<const Merger* const> mergers() { return kMergers; }

Result<const Merger*> find_merger(std::string_view name) {
  std::string known;
  for (const Merger* m : kMergers) {
    if (m->name == name) return m;
    known += ' ' + std::string(m->name);
  }
  return Error{Code::not_found, "no merger '" + std::string(name) + "'; there are:" + known};
}

}  // namespace quire
