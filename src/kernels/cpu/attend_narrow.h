// kernels/cpu/attend_narrow.h - outputs in the narrow arithmetic. For many (row, query head) pairs
// the values of a unit are turned into pairs of bf16 once (their image), which all of them read; a
// few read the pages themselves.
//
// Values are paired by slot: acc[h][v] += weights[h][i] . values[i][16 v ...] over pairs i.
#pragma once

#include "kernels/cpu/attend_scores.h"
#include "kernels/cpu/pairs.h"

namespace quire {
namespace {

// Groups [first, last) of the unit; what lies outside is never seen.
template <class E>
void image_values(const Unit<E>& unit, std::uint32_t first, std::uint32_t last, std::size_t dim,
                  std::uint32_t* image) {
  for (std::uint32_t i = 8 * first; i < 8 * last; ++i) {
    const E* even = unit.values[i / 8] + (2 * i % 16) * dim;
    for (std::size_t d = 0; d < dim; d += 16)
      store_pair_rows(image + i * dim + d, even + d, even + dim + d);
  }
}

// Whether slots [begin, end) of the image hold neither infinity nor NaN.
inline bool values_finite(const std::uint32_t* image, std::uint32_t begin, std::uint32_t end,
                          std::size_t dim) {
  bool finite = true;
  for (std::uint32_t slot = begin; slot < end; ++slot) {
    const std::uint32_t* row = image + slot / 2 * dim;
    const std::uint32_t exponent = slot % 2 == 0 ? 0x7f80u : 0x7f800000u;
    bool row_finite = true;
    for (std::size_t d = 0; d < dim; ++d) row_finite &= (row[d] & exponent) != exponent;
    finite &= row_finite;
  }
  return finite;
}

// Where the pairs of a unit come from: at(i, column) are 16 of row i.
struct Image {
  const std::uint32_t* words;
  std::size_t stride;
  QUIRE_INLINE Pairs at(std::size_t i, std::size_t column) const {
    return load_pairs(words + i * stride + column);
  }
};
template <class E>
struct ValueRows {  // pair i of slots, dimensions from `column` on
  const Unit<E>& unit;
  std::size_t dim;
  QUIRE_INLINE Pairs at(std::size_t i, std::size_t column) const {
    const E* even = unit.values[i / 8] + 2 * i % 16 * dim + column;
    return pair_rows(even, even + dim);
  }
};

// acc[h][v] += a[h * a_stride + i] . b(i, column + 16 v) for i in [first, first + kCount).
template <int kCount, int kHeads, int kV, class B>
QUIRE_INLINE void multiply_pairs(const std::uint32_t* a, std::size_t a_stride, const B& b,
                                 std::size_t first, std::size_t column, Floats (&acc)[kHeads][kV],
                                 std::uint32_t half = 0xffffffffu) {
  QUIRE_UNROLL(4)
  for (int i = 0; i < kCount; ++i) {
    Pairs row[kV];
    QUIRE_UNROLL(4)
    for (int v = 0; v < kV; ++v) {
      row[v] = b.at(first + i, column + 16 * v);
      if (half != 0xffffffffu) row[v] = only(row[v], half);
    }
    QUIRE_UNROLL(6)
    for (int h = 0; h < kHeads; ++h) {
      const Pairs by = all_pairs(a[h * a_stride + first + i]);
      QUIRE_UNROLL(4)
      for (int v = 0; v < kV; ++v) acc[h][v] = dot_add(by, row[v], acc[h][v]);
    }
  }
}

template <int kHeads, int kV, class B>
QUIRE_INLINE void narrow_outputs_at(const B& values, std::size_t at, std::uint32_t begin,
                                    std::uint32_t end, const std::uint32_t* weights,
                                    std::size_t dim, const float* keep, const float* take,
                                    Prefetch& next, float* out) {
  constexpr std::size_t kStride = kAttendUnit / 2;
  Floats acc[kHeads][kV];
  clear(acc);
  std::uint32_t i = begin / 2;
  if (begin % 2 != 0) {  // the slot before is not seen
    multiply_pairs<1>(weights, kStride, values, i, at, acc, kOddHalf);
    ++i;
  }
  for (; i + 4 <= end / 2; i += 4) {
    next.steps<float>();
    multiply_pairs<4>(weights, kStride, values, i, at, acc);
  }
  for (; i < end / 2; ++i) multiply_pairs<1>(weights, kStride, values, i, at, acc);
  if (end % 2 != 0 && i == end / 2)  // the slot after is not seen
    multiply_pairs<1>(weights, kStride, values, i, at, acc, kEvenHalf);
  take_in(acc, keep, take, dim, out + at);
}

template <int kHeads, class B>
void narrow_outputs(const B& values, std::uint32_t begin, std::uint32_t end,
                    const std::uint32_t* weights, std::size_t dim, const float* keep,
                    const float* take, Prefetch& next, float* out) {
  constexpr int kV = kVectors<kHeads>;
  std::size_t at = 0;
  for (; at + 16 * kV <= dim; at += 16 * kV)
    narrow_outputs_at<kHeads, kV>(values, at, begin, end, weights, dim, keep, take, next, out);
  for (; at < dim; at += 16)
    narrow_outputs_at<kHeads, 1>(values, at, begin, end, weights, dim, keep, take, next, out);
}

// exp(score - max), rounded to bf16; returns the sum of them before rounding.
QUIRE_INLINE float narrow_softmax(float top, const float* weights, std::uint16_t* narrow) {
  const Floats base = all(top);
  Floats sum;
  QUIRE_UNROLL(4)
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    const Floats p = exp_bounded(sub(load(weights + 16 * g), base), kNarrowExpMin);
    store_narrow(narrow + 16 * g, p);
    sum = g == 0 ? p : add(sum, p);
  }
  return add_elements(sum);
}

}  // namespace
}  // namespace quire
