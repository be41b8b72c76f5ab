// base/random.h - two generators: a seeded stream for simulations and tests, and a pure function of
// (seed, choice, position) for sampling.
#pragma once

#include <cstdint>

namespace quire {

// splitmix64: a good finalizer and a small seeded stream. Same seed, same stream, on every machine.
inline std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix64(seed)) {}
  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    return mix64(state_);
  }
  std::uint64_t below(std::uint64_t n) { return n ? next() % n : 0; }
  bool chance(double p) { return unit() < p; }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::uint64_t state_;
};

// A uniform number in [0, 1) that is a pure function of (seed, choice, position): the same draw
// whatever the batch.
inline double counter_unit(std::uint64_t seed, std::uint32_t choice, std::uint32_t position) {
  const std::uint64_t a = mix64(seed ^ 0x5155495245ull);
  const std::uint64_t b = mix64(a ^ (static_cast<std::uint64_t>(choice) << 32 | position));
  return static_cast<double>(mix64(b) >> 11) * 0x1p-53;
}

}  // namespace quire
