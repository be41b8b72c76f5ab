#include "model/rope.h"

#include <cmath>

namespace quire {
namespace {

// sin and cos of a double by reduction to [-pi/4, pi/4] and Taylor series. The C library chooses
// its own by processor, and they may differ in the last bit. These use only + and *, in one order.
struct SinCos {
  double sine, cosine;
};

SinCos sin_cos(double angle) {
  // pi/2 in three parts of 33 bits, so that multiples up to 2^20 are exact.
  constexpr double kHigh = 0x1.921fb544p+0, kMiddle = 0x1.0b4611a6p-34,
                   kLow = 0x1.3198a2e037073p-69;
  const double quarter_turns = std::nearbyint(angle * 0x1.45f306dc9c883p-1);
  const double r =
      ((angle - quarter_turns * kHigh) - quarter_turns * kMiddle) - quarter_turns * kLow;
  const double r2 = r * r;
  double s = 0, c = 0;
  for (int n = 8; n >= 1; --n) {
    s = -(1 + s) * r2 / ((2.0 * n) * (2.0 * n + 1));
    c = -(1 + c) * r2 / ((2.0 * n - 1) * (2.0 * n));
  }
  s = r + r * s;
  c = 1 + c;
  switch (static_cast<std::int64_t>(quarter_turns) & 3) {
    case 0:
      return {s, c};
    case 1:
      return {c, -s};
    case 2:
      return {-s, -c};
    default:
      return {-c, s};
  }
}

}  // namespace

RopeTable::RopeTable(const RopeConfig& config) {
  for (std::uint32_t i = 0; i < config.dimensions / 2; ++i) {
    const long double exponent = 2.0L * i / config.dimensions;
    long double frequency = 1 / powl(config.base, exponent);
    if (!config.factors.empty()) frequency /= config.factors[i];
    frequencies_.push_back(static_cast<double>(frequency / config.linear_factor));
  }
}

void RopeTable::cover(std::uint32_t end) {
  while (chunks_.size() * kChunk < end) {
    const auto first = static_cast<std::uint32_t>(chunks_.size() * kChunk);
    auto chunk = std::make_unique<float[]>(std::size_t{kChunk} * 2 * half());
    for (std::uint32_t p = 0; p < kChunk; ++p) {
      float* out = chunk.get() + std::size_t{p} * 2 * half();
      for (std::uint32_t i = 0; i < half(); ++i) {
        const SinCos a = sin_cos((first + p) * frequencies_[i]);
        out[i] = static_cast<float>(a.cosine);
        out[half() + i] = static_cast<float>(a.sine);
      }
    }
    rows_.push_back(chunk.get());
    chunks_.push_back(std::move(chunk));
  }
}

}  // namespace quire
