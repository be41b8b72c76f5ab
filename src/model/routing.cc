#include "model/routing.h"

#include <algorithm>
#include <limits>

#include "kernels/ref/math.h"

namespace quire {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

void softmax(std::span<float> x) {
  float most = kNever, sum = 0;
  for (const float v : x) most = std::max(most, v);
  for (float& v : x) sum += v = ref::exp(v - most);
  for (float& v : x) v /= sum;
}

// What a group of experts is worth: its best, or (where scores are sigmoids) its two best together.
float group_worth(std::span<const float> of, bool two) {
  float best = kNever, second = kNever;
  for (const float v : of) {
    if (v > best) {
      second = best;
      best = v;
    } else if (v > second) {
      second = v;
    }
  }
  return two && of.size() > 1 ? best + second : best;
}

// Marks the `count` largest, ties to the first; NaN is never larger, so it counts last.
void choose(std::span<const float> worth, std::uint32_t count, std::vector<std::uint8_t>& chosen) {
  chosen.assign(worth.size(), 0);
  for (std::uint32_t k = 0; k < count; ++k) {
    std::size_t best = worth.size();
    for (std::size_t i = 0; i < worth.size(); ++i)
      if (!chosen[i] && (best == worth.size() || worth[i] > worth[best])) best = i;
    chosen[best] = 1;
  }
}

}  // namespace

void route(const Experts& spec, std::span<float> scores, std::span<const float> bias,
           ExpertChoice* choices) {
  thread_local std::vector<float> worth, groups;
  thread_local std::vector<std::uint8_t> chosen, kept;
  if (spec.scores == Experts::Scores::softmax) softmax(scores);
  if (spec.scores == Experts::Scores::sigmoid)
    for (float& x : scores) x = ref::times_sigmoid(1, x);
  worth.assign(scores.begin(), scores.end());
  for (std::size_t i = 0; i < bias.size(); ++i) worth[i] += bias[i];
  if (spec.groups > 1) {
    const std::uint32_t size = spec.count / spec.groups;
    const bool two = spec.scores == Experts::Scores::sigmoid;
    groups.clear();
    for (std::uint32_t g = 0; g < spec.groups; ++g)
      groups.push_back(group_worth(std::span(worth).subspan(g * size, size), two));
    choose(groups, spec.groups_used, kept);
    for (std::uint32_t i = 0; i < spec.count; ++i)
      if (!kept[i / size]) worth[i] = two ? kNever : 0;
  }
  choose(worth, spec.used, chosen);
  std::uint32_t n = 0;
  for (std::uint32_t i = 0; i < spec.count; ++i)
    if (chosen[i]) choices[n++] = {i, scores[i]};
  if (spec.scores == Experts::Scores::chosen) {
    float most = kNever, sum = 0;
    for (std::uint32_t i = 0; i < n; ++i) most = std::max(most, choices[i].weight);
    for (std::uint32_t i = 0; i < n; ++i)
      sum += choices[i].weight = ref::exp(choices[i].weight - most);
    for (std::uint32_t i = 0; i < n; ++i) choices[i].weight /= sum;
  } else if (spec.renormalize) {
    float sum = 0;
    for (std::uint32_t i = 0; i < n; ++i) sum += choices[i].weight;
    if (spec.scores == Experts::Scores::sigmoid) sum += 1e-20f;
    for (std::uint32_t i = 0; i < n; ++i) choices[i].weight /= sum;
  }
  if (spec.scale != 1)
    for (std::uint32_t i = 0; i < n; ++i) choices[i].weight *= spec.scale;
}

std::uint32_t ExpertLists::items_max(const Experts& spec, std::uint32_t rows) {
  const std::uint32_t all = rows * spec.used;
  return (all + std::min(all, spec.count) * (kExpertAlign - 1) + kExpertAlign - 1) / kExpertAlign *
         kExpertAlign;
}

void ExpertLists::make(const Experts& spec, std::uint32_t rows,
                       std::span<const ExpertChoice> choices) {
  ends_.assign(spec.count, 0);
  for (const ExpertChoice& choice : choices.first(std::size_t{rows} * spec.used))
    ++ends_[choice.expert];
  lists.clear();
  std::uint32_t at = 0;
  for (std::uint32_t e = 0; e < spec.count; ++e) {
    if (ends_[e] == 0) continue;
    lists.push_back({e, at, at + ends_[e]});
    const std::uint32_t next = at + (ends_[e] + kExpertAlign - 1) / kExpertAlign * kExpertAlign;
    ends_[e] = at;
    at = next;
  }
  items.assign(at, {0xffffffffu, 0});
  for (std::uint32_t r = 0; r < rows; ++r)
    for (std::uint32_t k = 0; k < spec.used; ++k) {
      const ExpertChoice& choice = choices[std::size_t{r} * spec.used + k];
      items[ends_[choice.expert]++] = {r, choice.weight};
    }
}

}  // namespace quire
