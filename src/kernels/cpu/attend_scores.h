// kernels/cpu/attend_scores.h - scores in the narrow arithmetic: products of 16-bit integers.
//
// A key's scale comes from its largest element, so it is known to whoever reads the key and need
// not be stored. For many (row, query head) pairs the keys of a unit are turned into integers once
// (their image), which all of them read; a few read the pages themselves.
//
// Keys are paired by dimension: sums[h][v] += query[h][i] . keys[i][16 v ...] over pairs i.
#pragma once

#include "kernels/cpu/attend_tile.h"
#include "kernels/cpu/words.h"

namespace quire {
namespace {

struct KeyScales {
  float up[kAttendUnit], down[kAttendUnit];  // by slot of the unit
};

// The largest element of each key, times two: its sign is shifted out.
template <class E>
QUIRE_INLINE void largest_of_keys(const Unit<E>& unit, std::size_t dim, std::size_t tokens,
                                  __m256i (&sizes)[kGroups]) {
#ifdef __AVX512BW__
  if (unit.keys[1] == unit.keys[0] + 16 && unit.keys[3] == unit.keys[2] + 16) {
    __m512i wide[kGroups / 2] = {};
    for (std::size_t d = 0; d < dim * tokens; d += 2 * tokens) {
      QUIRE_UNROLL(2)
      for (std::uint32_t g = 0; g < kGroups; g += 2) {
        const __m512i a = _mm512_loadu_si512(unit.keys[g] + d);
        const __m512i b = _mm512_loadu_si512(unit.keys[g] + d + tokens);
        const __m512i both = _mm512_max_epu16(_mm512_add_epi16(a, a), _mm512_add_epi16(b, b));
        wide[g / 2] = _mm512_max_epu16(wide[g / 2], both);
      }
    }
    for (std::uint32_t g = 0; g < kGroups; g += 2) {
      sizes[g] = _mm512_castsi512_si256(wide[g / 2]);
      sizes[g + 1] = _mm512_extracti64x4_epi64(wide[g / 2], 1);
    }
    return;
  }
#endif
  for (std::size_t d = 0; d < dim * tokens; d += 2 * tokens) {
    QUIRE_UNROLL(4)
    for (std::uint32_t g = 0; g < kGroups; ++g) {
      const __m256i* even = reinterpret_cast<const __m256i*>(unit.keys[g] + d);
      const __m256i* odd = reinterpret_cast<const __m256i*>(unit.keys[g] + d + tokens);
      const __m256i a = _mm256_loadu_si256(even), b = _mm256_loadu_si256(odd);
      const __m256i most_of_both = _mm256_max_epu16(_mm256_add_epi16(a, a), _mm256_add_epi16(b, b));
      sizes[g] = _mm256_max_epu16(sizes[g], most_of_both);
    }
  }
}

// From each key's largest element; infinity and NaN leave a NaN in `down`.
template <class E>
QUIRE_INLINE void scale_keys(const Unit<E>& unit, std::size_t dim, std::size_t tokens,
                             KeyScales& scales) {
  __m256i sizes[kGroups] = {};
  largest_of_keys(unit, dim, tokens, sizes);
  for (std::uint32_t g = 0; g < kGroups; ++g) {
    E largest[16];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(largest), _mm256_srli_epi16(sizes[g], 1));
    const Floats power = max(exponent_of(load(largest)), all(kKeyPowerMin));
    const Floats poison = sub(power, power);  // NaN if infinite
    store(scales.up + 16 * g, div(all(kKeyUnits), power));
    store(scales.down + 16 * g, fma(power, all(1 / kKeyUnits), poison));
  }
}

// Where the keys of a unit come from: at(i, g) are dimensions 2 i and 2 i + 1 of group g.
struct KeyImage {
  const std::uint32_t* words;  // [dim / 2][unit]
  QUIRE_INLINE Ints at(std::size_t i, std::size_t g) const {
    return load_ints(words + i * kAttendUnit + 16 * g);
  }
};
template <class E>
struct KeyRows {
  const Unit<E>& unit;
  const KeyScales& scales;
  std::size_t tokens;
  QUIRE_INLINE Ints at(std::size_t i, std::size_t g) const {
    const E* even = unit.keys[g] + 2 * i * tokens;
    const Floats up = load(scales.up + 16 * g);
    return make_words(fma(load(even), up, all(kWordBias)),
                      fma(load(even + tokens), up, all(kWordBias)));
  }
};

template <class E>
void image_keys(const KeyRows<E>& keys, std::size_t dim, std::uint32_t* image) {
  for (std::size_t i = 0; i < dim / 2; ++i)
    for (std::uint32_t g = 0; g < kGroups; ++g)
      store_ints(image + i * kAttendUnit + 16 * g, keys.at(i, g));
}

// One query times `scale` as integers, two to a word; returns what one of them is worth.
inline float word_query(const float* query, float scale, std::size_t dim, std::uint32_t* words) {
  Floats top = zero(), poison = zero();  // 0, or NaN if an element is infinite or NaN
  for (std::size_t d = 0; d < dim; d += 16) {
    const Floats x = mul(all(scale), load(query + d));
    top = max(size_of(x), top);
    poison = fma(x, zero(), poison);
  }
  const float most_of_it = largest_of(top);
  const float up = most_of_it < kQueryMin ? 0 : kQueryUnits / most_of_it;
  for (std::size_t d = 0; d < dim; d += 16) {
    std::uint32_t wide[16];
    const Floats x = mul(mul(all(scale), load(query + d)), all(up));
    store_ints(wide, make_words(add(x, all(kWordBias)), zero()));
    for (int i = 0; i < 8; ++i) words[d / 2 + i] = wide[2 * i] | wide[2 * i + 1] << 16;
  }
  return most_of_it / kQueryUnits + add_elements(poison);
}

// sums[h][v] += queries[h * stride + i] . keys(i, g + v) for i in [first, first + kCount).
template <int kCount, int kHeads, int kV, class K>
QUIRE_INLINE void multiply_words(const std::uint32_t* queries, std::size_t stride, const K& keys,
                                 std::size_t first, std::uint32_t g, Ints (&sums)[kHeads][kV]) {
  QUIRE_UNROLL(4)
  for (int i = 0; i < kCount; ++i) {
    Ints row[kV];
    QUIRE_UNROLL(4)
    for (int v = 0; v < kV; ++v) row[v] = keys.at(first + i, g + v);
    QUIRE_UNROLL(6)
    for (int h = 0; h < kHeads; ++h) {
      const Ints by = all_ints(static_cast<std::int32_t>(queries[h * stride + first + i]));
      QUIRE_UNROLL(4)
      for (int v = 0; v < kV; ++v) sums[h][v] = dot_pairs(sums[h][v], by, row[v]);
    }
  }
}

// weights[h][j] = dot(query h, key of slot j), for all 64 slots. Queries are `stride` words apart.
template <int kHeads, class K>
void word_scores(const K& keys, const KeyScales& scales, const std::uint32_t* queries,
                 std::size_t stride, const float* query_scales, std::size_t dim, Prefetch& next,
                 float* weights) {
  constexpr int kV = kVectors<kHeads>;
  const std::size_t pairs = dim / 2;
  for (std::uint32_t g = 0; g < kGroups; g += kV)
    for (std::size_t first = 0; first < pairs; first += kScoreRun / 2) {
      const std::size_t last = least(pairs, first + kScoreRun / 2);
      Ints sums[kHeads][kV];
      QUIRE_UNROLL(6)
      for (int h = 0; h < kHeads; ++h) {
        QUIRE_UNROLL(4)
        for (int v = 0; v < kV; ++v) sums[h][v] = zero_ints();
      }
      for (std::size_t i = first; i < last; i += 4) {
        next.steps<float>();
        multiply_words<4>(queries, stride, keys, i, g, sums);
      }
      QUIRE_UNROLL(6)
      for (int h = 0; h < kHeads; ++h) {
        QUIRE_UNROLL(4)
        for (int v = 0; v < kV; ++v) {
          float* to = weights + h * kAttendUnit + 16 * (g + v);
          Floats x = to_floats(sums[h][v]);
          if (first != 0) x = add(load(to), x);
          if (last == pairs)
            x = mul(mul(x, load(scales.down + 16 * (g + v))), all(query_scales[h]));
          store(to, x);
        }
      }
    }
}

}  // namespace
}  // namespace quire
