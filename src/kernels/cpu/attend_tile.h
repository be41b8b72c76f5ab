// kernels/cpu/attend_tile.h - one unit of 64 slots against a tile of (row, query head) pairs, in
// terms of floats.h.
//
// Scores and outputs are the same small product: acc[h][v] += a[h][i] * b[i][16 v ...], with a
// broadcast and b one row of keys (a dimension of 16 slots) or of values (16 dimensions of a slot),
// widened to f32 on the way into a register. Up to six pairs share each such row. The next unit's
// pages are prefetched in between, eight lines at a time.
#pragma once

#include "kernels/attend.h"
#include "kernels/attend_scratch.h"
#include "kernels/cpu/floats.h"
#include "kernels/kv_run.h"

namespace quire {
namespace {

inline constexpr float kLowest = -__builtin_inff();
inline constexpr std::uint32_t kGroups = kAttendUnit / 16;  // a page never ends inside 16 slots

// Where 64 slots of one lane lie, by groups of 16.
template <class E>
struct Unit {
  const E* keys[kGroups];    // [dim][tokens_per_block]
  const E* values[kGroups];  // [16][dim]
};

// Fetches what is needed next into L2, eight lines at a time: the values of a unit during its
// scores, the keys of the next unit during its outputs. (L1 can have only few misses under way, so
// fetching into L1 would be slower.)
struct Prefetch {
  const char* parts[kGroups];
  std::uint32_t count = 0, part = 0;
  std::size_t part_bytes = 0;
  const char *at = nullptr, *end = nullptr;

  bool done() const { return at == end && part == count; }

  QUIRE_INLINE void step() {
    if (at == end) {
      if (part == count) return;
      at = parts[part++];
      end = at + part_bytes;
    }
    QUIRE_UNROLL(8)
    for (int i = 0; i < 8; ++i) _mm_prefetch(at + 64 * i, _MM_HINT_T1);
    at += 512;
  }
  // As many as 64 slots of four dimensions, or four slots, take.
  template <class E>
  QUIRE_INLINE void steps() {
    QUIRE_UNROLL(2)
    for (std::size_t i = 0; i < sizeof(E); i += 2) step();
  }
};

template <int kHeads>
inline constexpr int kVectors = kWide         ? 4
                                : kHeads <= 3 ? 2
                                              : 1;

// acc[h][v] += a[h * a_stride + i] * b[v][i * b_stride ...] for kCount values of i.
template <int kCount, int kHeads, int kV, class E>
QUIRE_INLINE void multiply_add(const float* a, std::size_t a_stride, const E* const (&b)[kV],
                               std::size_t b_stride, Floats (&acc)[kHeads][kV]) {
  QUIRE_UNROLL(4)
  for (int i = 0; i < kCount; ++i) {
    Floats row[kV];
    QUIRE_UNROLL(4)
    for (int v = 0; v < kV; ++v) row[v] = load(b[v] + i * b_stride);
    QUIRE_UNROLL(6)
    for (int h = 0; h < kHeads; ++h) {
      const Floats by = all(a[h * a_stride + i]);
      QUIRE_UNROLL(4)
      for (int v = 0; v < kV; ++v) acc[h][v] = fma(by, row[v], acc[h][v]);
    }
  }
}

template <int kHeads, int kV>
QUIRE_INLINE void clear(Floats (&acc)[kHeads][kV]) {
  QUIRE_UNROLL(6)
  for (int h = 0; h < kHeads; ++h) {
    QUIRE_UNROLL(4)
    for (int v = 0; v < kV; ++v) acc[h][v] = zero();
  }
}

// out[h] = acc[h] * take[h] + out[h] * keep[h].
template <int kHeads, int kV>
QUIRE_INLINE void take_in(const Floats (&acc)[kHeads][kV], const float* keep, const float* take,
                          std::size_t dim, float* out) {
  QUIRE_UNROLL(6)
  for (int h = 0; h < kHeads; ++h) {
    QUIRE_UNROLL(4)
    for (int v = 0; v < kV; ++v) {
      float* to = out + h * dim + 16 * v;
      store(to, fma(acc[h][v], all(take[h]), mul(load(to), all(keep[h]))));
    }
  }
}

// weights[h][j] = dot(query h, key of slot j), for all 64 slots; rows are `stride` apart, and queries
// `query_stride`, if not dim.
template <int kHeads, class E>
void scores(const Unit<E>& unit, const float* queries, std::size_t dim, std::size_t tokens,
            Prefetch& next, float* weights, std::size_t stride = kAttendUnit,
            std::size_t query_stride = 0) {
  const std::size_t apart = query_stride != 0 ? query_stride : dim;
  constexpr int kV = kVectors<kHeads>;
  for (std::uint32_t g = 0; g < kGroups; g += kV) {
    const E* keys[kV];
    for (int v = 0; v < kV; ++v) keys[v] = unit.keys[g + v];
    Floats acc[kHeads][kV];
    clear(acc);
    for (std::size_t d = 0; d < dim; d += 4) {
      next.steps<E>();
      multiply_add<4>(queries + d, apart, keys, tokens, acc);
      for (int v = 0; v < kV; ++v) keys[v] += 4 * tokens;
    }
    QUIRE_UNROLL(6)
    for (int h = 0; h < kHeads; ++h) {
      QUIRE_UNROLL(4)
      for (int v = 0; v < kV; ++v) store(weights + h * stride + 16 * (g + v), acc[h][v]);
    }
  }
}

// out[h] = sum over slots [begin, end) of weight * value, times take[h], plus out[h] * keep[h]; kV
// vectors of it.
template <int kHeads, int kV, class E>
QUIRE_INLINE void outputs_at(const Unit<E>& unit, std::size_t at, std::uint32_t begin,
                             std::uint32_t end, const float* weights, std::size_t dim,
                             const float* keep, const float* take, Prefetch& next, float* out) {
  Floats acc[kHeads][kV];
  clear(acc);
  for (std::uint32_t g = begin / 16; 16 * g < end; ++g) {
    std::uint32_t j = most(begin, 16 * g);
    const std::uint32_t stop = least(end, 16 * g + 16);
    const E* values[kV];
    for (int v = 0; v < kV; ++v) values[v] = unit.values[g] + (j - 16 * g) * dim + at + 16 * v;
    for (; j + 4 <= stop; j += 4) {
      next.steps<E>();
      multiply_add<4>(weights + j, kAttendUnit, values, dim, acc);
      for (int v = 0; v < kV; ++v) values[v] += 4 * dim;
    }
    for (; j < stop; ++j) {
      multiply_add<1>(weights + j, kAttendUnit, values, dim, acc);
      for (int v = 0; v < kV; ++v) values[v] += dim;
    }
  }
  take_in(acc, keep, take, dim, out + at);
}

template <int kHeads, class E>
void outputs(const Unit<E>& unit, std::uint32_t begin, std::uint32_t end, const float* weights,
             std::size_t dim, const float* keep, const float* take, Prefetch& next, float* out) {
  constexpr int kV = kVectors<kHeads>;
  std::size_t at = 0;
  for (; at + 16 * kV <= dim; at += 16 * kV)
    outputs_at<kHeads, kV>(unit, at, begin, end, weights, dim, keep, take, next, out);
  for (; at < dim; at += 16)
    outputs_at<kHeads, 1>(unit, at, begin, end, weights, dim, keep, take, next, out);
}

// A mask of the elements of group g that lie in slots [begin, end) of the unit.
QUIRE_INLINE Mask lanes_of_group(std::uint32_t g, std::uint32_t begin, std::uint32_t end) {
  const std::uint32_t low = least(most(begin, 16 * g) - 16 * g, 16u);
  return elements_between(low, most(low, most(least(end, 16 * g + 16), 16 * g) - 16 * g));
}

// Scores, of n pairs, under a soft cap.
template <std::uint32_t kSlots = kAttendUnit>
void cap_scores(float cap, std::uint32_t n, float* weights) {
  const Floats inverse = all(1.0f / cap);
  for (std::size_t i = 0; i < std::size_t{n} * kSlots; i += 16)
    store(weights + i, mul(all(cap), tanh(mul(load(weights + i), inverse))));
}

// Scores of slots outside [begin, end) become -inf; of a unit, here and below.
template <std::uint32_t kSlots = kAttendUnit>
void mask_scores(std::uint32_t begin, std::uint32_t end, float* weights) {
  for (std::uint32_t g = 0; g < kSlots / 16; ++g) {
    const Floats x = load(weights + 16 * g);
    store(weights + 16 * g, choose(lanes_of_group(g, begin, end), x, all(kLowest)));
  }
}

// Reduces a unit's scores to one vector; the largest score is its largest element.
template <std::uint32_t kSlots = kAttendUnit>
QUIRE_INLINE Floats max_scores(const float* weights) {
  Floats a = max(load(weights), load(weights + 16));
  Floats b = max(load(weights + 32), load(weights + 48));
  QUIRE_UNROLL(4)
  for (std::uint32_t i = 64; i < kSlots; i += 32) {
    a = max(a, load(weights + i));
    b = max(b, load(weights + i + 16));
  }
  return max(a, b);
}

// Turns scores into exp(score - max) in place. Their sum is the sum of the returned elements.
template <std::uint32_t kSlots, class Exp>
QUIRE_INLINE Floats softmax(float top, float* weights, Exp exp) {
  const Floats base = all(top);
  Floats sum;
  QUIRE_UNROLL(8)
  for (std::uint32_t g = 0; g < kSlots / 16; ++g) {
    const Floats p = exp(sub(load(weights + 16 * g), base));
    store(weights + 16 * g, p);
    sum = g == 0 ? p : add(sum, p);
  }
  return sum;
}

// Merges n pairs (max, sum) into others and leaves the factors of both sides:
// into = into * keep + from * take.
inline void merge_sums(const float* from_max, const float* from_sum, std::uint32_t n,
                       float* into_max, float* into_sum, float* keep, float* take) {
  for (std::uint32_t i = 0; i < n; i += 16) {
    const std::uint32_t count = least(n - i, 16u);
    const Floats m = load_first(into_max + i, count), u = load_first(from_max + i, count);
    const Floats top = max(m, u);
    const Floats a = exp_bounded(sub(m, top)), b = exp_bounded(sub(u, top));
    const Floats l = load_first(into_sum + i, count), k = load_first(from_sum + i, count);
    store_first(into_max + i, top, count);
    store_first(into_sum + i, fma(k, b, mul(l, a)), count);
    store_first(keep + i, a, count);
    store_first(take + i, b, count);
  }
}

inline void merge_outputs(const float* from, std::uint32_t n, std::size_t dim, const float* keep,
                          const float* take, float* into) {
  for (std::uint32_t i = 0; i < n; ++i)
    for (std::size_t d = i * dim; d < (i + 1) * dim; d += 16)
      store(into + d, fma(load(from + d), all(take[i]), mul(load(into + d), all(keep[i]))));
}

template <int kN>
struct Count {
  static constexpr int value = kN;
};

// Calls f(Count<k>, first) for runs of up to six pairs, of lengths as equal as possible.
template <class F>
QUIRE_INLINE void each_heads(std::uint32_t n, F f) {
  for (std::uint32_t i = 0; i < n;) {
    const std::uint32_t left = n - i;
    const std::uint32_t k = left >= 12 || left == 6 ? 6 : left > 6 ? (left + 1) / 2 : left;
    switch (k) {
      case 1:
        f(Count<1>{}, i);
        break;
      case 2:
        f(Count<2>{}, i);
        break;
      case 3:
        f(Count<3>{}, i);
        break;
      case 4:
        f(Count<4>{}, i);
        break;
      case 5:
        f(Count<5>{}, i);
        break;
      default:
        f(Count<6>{}, i);
        break;
    }
    i += k;
  }
}

// Latent attention: adds the scores of n pairs against the rotated part, which lie at `rotated`.
inline void add_scores(const float* rotated, std::uint32_t n, float* weights) {
  for (std::size_t i = 0; i < std::size_t{n} * kAttendUnit; i += 16)
    store(weights + i, add(load(weights + i), load(rotated + i)));
}

// Pairs [first, first + n) of the tile take in slots [begin, end) of this unit. `latent` (or null) has
// the unit's latent rows as keys of 64 slots to a page.
template <class E>
void attend_unit(const AttendScratch& s, const AttendShape& shape, std::size_t tokens,
                 const Unit<E>& unit, const Unit<E>* latent, std::uint32_t first, std::uint32_t n,
                 std::uint32_t begin, std::uint32_t end, Prefetch& values, Prefetch& keys) {
  const std::size_t dim = shape.head_dim, width = query_dim(shape);
  const Unit<E>& unit_keys = latent != nullptr ? *latent : unit;
  const std::size_t apart = latent != nullptr ? kAttendUnit : tokens;
  each_heads(n, [&](auto heads, std::uint32_t i) {
    scores<heads.value>(unit_keys, s.queries + (first + i) * width, dim, apart, values,
                        s.weights + i * kAttendUnit, kAttendUnit, width);
  });
  if (latent != nullptr) {
    float* const dots = s.weights + std::size_t{n} * kAttendUnit;
    each_heads(n, [&](auto heads, std::uint32_t i) {
      scores<heads.value>(unit, s.queries + (first + i) * width + dim, shape.rotated, tokens,
                          values, dots + i * kAttendUnit, kAttendUnit, width);
    });
    add_scores(dots, n, s.weights);
  }
  if (shape.softcap != 0) cap_scores(shape.softcap, n, s.weights);
  if (begin != 0 || end != kAttendUnit)
    for (std::uint32_t i = 0; i < n; ++i) mask_scores(begin, end, s.weights + i * kAttendUnit);
  for (std::uint32_t i = 0; i < n; ++i)
    s.unit_max[i] = largest_of(max_scores(s.weights + i * kAttendUnit));
  for (std::uint32_t i = 0; i < n; ++i)
    s.unit_sum[i] = add_elements(softmax<kAttendUnit>(s.unit_max[i], s.weights + i * kAttendUnit,
                                                      [](Floats x) { return exp_bounded(x); }));
  merge_sums(s.unit_max, s.unit_sum, n, s.split_max + first, s.split_sum + first, s.keep, s.take);
  each_heads(n, [&](auto heads, std::uint32_t i) {
    outputs<heads.value>(unit, begin, end, s.weights + i * kAttendUnit, dim, s.keep + i, s.take + i,
                         keys, s.split_out + (first + i) * dim);
  });
}

}  // namespace
}  // namespace quire
