#include "engine/draft/pace.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

constexpr double kGainMin = 1.02;
constexpr std::uint64_t kTryEvery = 32;  // steps, where drafts do not seem to pay
constexpr std::uint32_t kTryTokens = 2;
constexpr std::uint64_t kPlainEvery = 128;  // steps, where they do: one without is measured

}  // namespace

double expected_right(double rate, std::uint32_t length) {
  double sum = 0, chance = 1;
  for (std::uint32_t i = 0; i < length; ++i) sum += chance *= rate;
  return sum;
}

// Sizes up to 16 one by one, then eight to each doubling.
std::size_t DraftPace::index_of(std::uint32_t rows) {
  if (rows <= 16) return rows;
  const double at = 16 + 8 * std::log2(rows / 16.0);
  return std::min(static_cast<std::size_t>(at + 0.5), kSizes - 1);
}

double DraftPace::rows_of(std::size_t index) {
  return index <= 16 ? static_cast<double>(index)
                     : 16 * std::exp2((static_cast<double>(index) - 16) / 8);
}

void DraftPace::add(std::uint32_t rows, double ns) {
  Measured& m = sizes_[index_of(rows)];
  constexpr double kOutlier = 2, kWeight = 0.15;
  if (m.ns > 0) ns = std::min(ns, kOutlier * m.ns);  // a step that was interrupted counts as slow
  m.ns += (m.ns == 0 ? 1 : kWeight) * (ns - m.ns);
  m.when = ++steps_;
  constexpr double kKeep = 0.98;
  for (double* sum : {&count_, &x_, &y_, &xx_, &xy_}) *sum *= kKeep;
  count_ += 1;
  x_ += rows;
  y_ += ns;
  xx_ += static_cast<double>(rows) * rows;
  xy_ += rows * ns;
}

double DraftPace::row_ns() const {
  const double spread = xx_ - x_ * x_ / std::max(count_, 1.0);
  constexpr double kSpreadMin = 1;  // if all steps had the same size, nothing is known
  return spread < kSpreadMin ? 0 : std::max((xy_ - x_ * y_ / count_) / spread, 0.0);
}

// Between sizes that were measured, a straight line; beyond them, the line through the last two.
double DraftPace::step_ns(std::uint32_t rows) const {
  const std::size_t at = index_of(rows);
  if (sizes_[at].ns > 0) return sizes_[at].ns;
  std::size_t below = at, above = at;
  while (below > 0 && sizes_[below].ns == 0) --below;
  while (above < kSizes && sizes_[above].ns == 0) ++above;
  if (below == 0) return above < kSizes ? sizes_[above].ns : 0;
  const double from = rows_of(below), ns = sizes_[below].ns;
  if (above < kSizes)
    return ns + (std::max(sizes_[above].ns, ns) - ns) * (rows - from) / (rows_of(above) - from);
  std::size_t other = below - 1;
  while (other > 0 && sizes_[other].ns == 0) --other;
  constexpr double kUnknownSlope = 0.08;  // of a row, relative to the step
  const double slope = other == 0 ? kUnknownSlope * ns / from
                                  : std::max(ns - sizes_[other].ns, 0.0) / (from - rows_of(other));
  return ns + slope * (rows - from);
}

void DraftPace::try_some(std::span<DraftOffer> offers) {
  const auto best = std::ranges::max_element(offers, {}, &DraftOffer::rate);
  best->take = std::min(best->length, kTryTokens);
  drafted_ = steps_;
}

void DraftPace::choose(std::uint32_t rows, std::uint32_t most, std::span<DraftOffer> offers) {
  if (offers.empty() || most == 0) return;
  const Measured& plain = sizes_[index_of(rows)];
  if (plain.ns == 0 || steps_ - plain.when > kPlainEvery) return;
  // Rows in the order of what they are worth: a token of a draft is worth less than the one before it.
  candidates_.clear();
  for (std::uint32_t i = 0; i < offers.size(); ++i) {
    double chance = 1;
    for (std::uint32_t j = 0; j < offers[i].length; ++j)
      candidates_.push_back({chance *= offers[i].rate, i});
  }
  std::ranges::sort(candidates_, std::greater(), &Candidate::chance);
  if (candidates_.size() > most) candidates_.resize(most);
  constexpr double kCheapest = 0.8;     // of a row, relative to the average one
  constexpr double kUnknownFixed = 12;  // what a step costs besides its rows, in rows
  const double measured = row_ns(),
               row = measured > 0 ? kCheapest * measured : plain.ns / (rows + kUnknownFixed);
  double tokens = rows, best = tokens / plain.ns * kGainMin;
  std::size_t take = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    tokens += candidates_[i].chance;
    const auto more = static_cast<std::uint32_t>(i) + 1;
    const double speed = tokens / std::max(step_ns(rows + more), plain.ns + row * more);
    if (speed <= best) continue;
    best = speed;
    take = i + 1;
  }
  if (take == 0) {
    if (steps_ - drafted_ >= kTryEvery) try_some(offers);
    return;
  }
  for (std::size_t i = 0; i < take; ++i) ++offers[candidates_[i].offer].take;
  drafted_ = steps_;
}

}  // namespace quire
