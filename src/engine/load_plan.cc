#include "engine/load_plan.h"

#include <algorithm>

namespace quire {
namespace {

// Of a tier that has not been measured. Computing starts soon if it is slower.
constexpr double kGuessedBytesPerSecond = 300e6, kGuessedFirstByte = 1e-3;
constexpr double kClearlyFaster = 0.5;  // then nothing is computed besides

TierCost or_guessed(const TierCost& cost) {
  if (cost.bytes_per_s > 0) return cost;
  return {.first_byte_s = kGuessedFirstByte,
          .bytes_per_s = kGuessedBytesPerSecond,
          .queued_bytes = cost.queued_bytes};
}

}  // namespace

TierCost joint_cost(std::span<const TierShare> shares) {
  double first = 0, reading = 0, queue = 0, bytes = 0;
  const TierShare* only = nullptr;
  std::size_t used = 0;
  for (const TierShare& s : shares) {
    if (s.bytes == 0) continue;
    ++used;
    only = &s;
    const TierCost cost = or_guessed(s.cost);
    first = std::max(first, cost.first_byte_s);
    reading += static_cast<double>(s.bytes) / cost.bytes_per_s;
    queue = std::max(queue, static_cast<double>(cost.queued_bytes) / cost.bytes_per_s);
    bytes += static_cast<double>(s.bytes);
  }
  if (used == 0) return {};
  if (used == 1) return only->cost;
  const double rate = bytes / reading;
  return {.first_byte_s = first,
          .bytes_per_s = rate,
          .queued_bytes = static_cast<std::uint64_t>(queue * rate)};
}

LoadPlan plan_load(const LoadSpan& span, const TierCost& tier, const PrefillCost& prefill,
                   bool may_compute) {
  const double rate = or_guessed(tier).bytes_per_s, first = or_guessed(tier).first_byte_s;
  const auto load = [&](std::uint32_t blocks) {
    const double bytes = static_cast<double>(blocks) * static_cast<double>(span.block_bytes) +
                         static_cast<double>(tier.queued_bytes);
    return blocks == 0 ? 0 : first + bytes / rate;
  };
  const auto compute = [&](std::uint32_t end) {
    const double tokens = span.tokens_per_block;
    return prefill.ns(span.from * tokens, end * tokens) * 1e-9;
  };
  const double all = load(span.to - span.from);
  if (!prefill.known()) return {.first = span.from, .waits = true, .seconds = 0};
  if (all < kClearlyFaster * compute(span.to))
    return {.first = span.from, .waits = true, .seconds = all};
  if (!may_compute)
    return {.first = all < compute(span.to) ? span.from : span.to, .waits = true, .seconds = all};
  // The more is computed, the less is loaded: where the two end together.
  std::uint32_t low = span.from, high = span.to;
  while (low < high) {
    const std::uint32_t middle = low + (high - low) / 2;
    if (compute(middle) >= load(span.to - middle))
      high = middle;
    else
      low = middle + 1;
  }
  return {.first = low, .waits = low == span.from, .seconds = load(span.to - low)};
}

}  // namespace quire
