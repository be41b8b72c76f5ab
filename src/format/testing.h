// format/testing.h - rows of noise and round trips, for the tests of codecs.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/half.h"
#include "base/random.h"
#include "format/codec.h"

namespace quire {

// Of a fuzzer: `count` objects from the input, over and over.
template <class T>
std::vector<T> fill(const std::uint8_t* data, std::size_t size, std::size_t count) {
  std::vector<T> out(count);
  auto* bytes = reinterpret_cast<std::uint8_t*>(out.data());
  for (std::size_t i = 0; i < count * sizeof(T) && size > 0; ++i) bytes[i] = data[i % size];
  return out;
}

// Normal numbers, rounded to f16 as the open tail has them.
class Gaussian {
 public:
  explicit Gaussian(std::uint64_t seed) : random_(seed) {}
  float next() {
    const double radius = std::sqrt(-2 * std::log(1 - random_.unit()));
    return static_cast<float>(radius * std::cos(6.283185307179586 * random_.unit()));
  }
  std::vector<float> rows(Rows rows) {
    std::vector<float> x(std::size_t{rows.tokens} * rows.dim);
    for (float& v : x) v = f16_to_f32(f32_to_f16(next()));
    return x;
  }

 private:
  Random random_;
};

inline std::vector<std::byte> encoded(const Codec& c, Side side, Rows rows,
                                      const std::vector<float>& x) {
  std::vector<std::byte> page(codec_bytes(c, side, rows));
  c.encode(c, side, rows, x.data(), page.data());
  return page;
}

// Encoded, decoded and rotated back.
inline std::vector<float> round_trip(const Codec& c, Side side, Rows rows,
                                     const std::vector<float>& x) {
  std::vector<float> y(x.size());
  c.decode(c, side, rows, encoded(c, side, rows, x).data(), y.data());
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    from_basis(c.basis(side), rows.dim, &y[std::size_t{slot} * rows.dim]);
  return y;
}

inline double relative_error(const Codec& c, Side side, Rows rows, int pages) {
  Gaussian random(1);
  double error = 0, power = 0;
  for (int page = 0; page < pages; ++page) {
    const std::vector<float> x = random.rows(rows), y = round_trip(c, side, rows, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      error += std::pow(double{y[i]} - x[i], 2);
      power += std::pow(double{x[i]}, 2);
    }
  }
  return error / power;
}

}  // namespace quire
