#include "kv/evict/reuse_odds.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace quire {
namespace {

// Until something is known: the chance to be used again is the same in every octave of age, so
// that the least recently used block is worth least. A class is taken for all classes together
// until it has some hundred uses of its own.
constexpr double kChance = 0.06, kChanceBlocks = 20, kClassBlocks = 300;

}  // namespace

ReuseOdds::ReuseOdds() {
  samples_.reserve(kSamples);
  update(0);
}

std::uint32_t ReuseOdds::bucket(Nanoseconds age) {
  if (age < Nanoseconds{1} << kLowest) return 0;
  const auto ticks = static_cast<std::uint64_t>(age);
  const int octave = std::bit_width(ticks) - 1;
  if (octave >= kLowest + kOctaves) return kAges - 1;
  const auto part =
      static_cast<std::uint32_t>(ticks >> (octave - std::bit_width(kParts - 1u))) & (kParts - 1);
  return 1 + static_cast<std::uint32_t>(octave - kLowest) * kParts + part;
}

double ReuseOdds::start_of(std::uint32_t bucket) {
  if (bucket == 0) return 0;
  const auto octave = static_cast<int>((bucket - 1) / kParts);
  const double part = (bucket - 1) % kParts;
  return std::ldexp(1 + part / kParts, kLowest + octave);
}

void ReuseOdds::idle(std::uint32_t cls, Nanoseconds now) {
  ++idle_[cls];
  ++total_;
  if (total_ - sampled_ < step_) return;
  sampled_ = total_;
  if (!samples_.empty() && samples_.back().time >= now) {
    std::ranges::copy(idle_, samples_.back().idle);
    return;
  }
  if (samples_.size() == kSamples) {  // every other one will do
    for (std::size_t i = 0; 2 * i + 1 < kSamples; ++i) samples_[i] = samples_[2 * i + 1];
    samples_.resize(kSamples / 2);
    step_ *= 2;
  }
  samples_.push_back({now, {}});
  std::ranges::copy(idle_, samples_.back().idle);
  if (total_ > kForget) halve();
}

void ReuseOdds::used(std::uint32_t cls, Nanoseconds age) { ++used_[cls][bucket(age)]; }

void ReuseOdds::halve() {
  for (std::uint32_t c = 0; c < kClasses; ++c) {
    idle_[c] /= 2;
    for (double& n : used_[c]) n /= 2;
    for (Sample& s : samples_) s.idle[c] /= 2;
  }
  total_ /= 2;
  sampled_ /= 2;
  step_ /= 2;
}

double ReuseOdds::idle_before(std::uint32_t cls, Nanoseconds time) const {
  const auto after = std::ranges::upper_bound(samples_, time, {}, &Sample::time);
  return after == samples_.begin() ? 0 : (after - 1)->idle[cls];
}

void ReuseOdds::update(Nanoseconds now) {
  std::array<double, kAges> all_chance;
  // First all classes together, on which the others lean.
  for (std::uint32_t i = 0; i <= kClasses; ++i) {
    const bool all = i == 0;
    const std::uint32_t first = all ? 0 : i - 1, last = all ? kClasses : i;
    std::array<double, kAges + 1> old{};  // blocks that became idle at least this long ago
    std::array<double, kAges> again{};
    for (std::uint32_t c = first; c < last; ++c)
      for (std::uint32_t a = 0; a < kAges; ++a) {
        old[a] += idle_before(c, now - static_cast<Nanoseconds>(start_of(a)));
        again[a] += used_[c][a];
      }
    // The chance that a block which reached an age is used before the next one (Kaplan and Meier).
    // Where little was seen of an age, the first pass's result counts: for all classes their mean
    // over all ages, for a class the chance of all classes times what sets this class apart.
    std::array<double, kAges> chance;
    double scale = 1;
    for (const double weight : {all ? kChanceBlocks : 0.0, all ? kChanceBlocks : kClassBlocks}) {
      double alive = 1, expected = kChance * kChanceBlocks, found = expected;
      for (std::uint32_t a = 0; a < kAges; ++a) {
        const double seen = (old[a] + old[a + 1]) / 2 * alive;
        const double prior = std::min(1.0, scale * (all ? kChance : all_chance[a]));
        const double sum = seen + weight;
        chance[a] = sum > 0 ? std::min(1.0, (again[a] + weight * prior) / sum) : prior;
        alive = std::max(alive * (1 - chance[a]), 1e-9);
        expected += seen * prior;
        found += std::min(again[a], seen);
      }
      scale = found / expected;
    }
    if (all) {
      all_chance = chance;
      continue;
    }
    for (std::uint32_t a = 0; a < kAges; ++a) {
      double left = 1, uses = 0, time = 0, best = 0;
      for (std::uint32_t b = a; b < kAges; ++b) {
        const double span = b + 1 < kAges ? start_of(b + 1) - start_of(b) : start_of(b);
        const double now_used = left * chance[b];
        uses += now_used;
        time += (left - now_used / 2) * span;
        left -= now_used;
        best = std::max(best, uses / time);
      }
      worth_[i - 1][a] = best;
    }
  }
}

}  // namespace quire
