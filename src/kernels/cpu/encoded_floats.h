// kernels/cpu/encoded_floats.h - pages of floats, 8 bits to 32, in f32: a side that is exact beside
// one that is not, and fp8.
#pragma once

#include "kernels/cpu/encoded_keys.h"

namespace quire {
namespace {

enum class E4m3 : std::uint8_t {};  // read as the number times 2^-8
enum class E5m2 : std::uint8_t {};

QUIRE_INLINE Floats halves_to_floats(__m256i h) {
#ifdef __AVX512F__
  return _mm512_cvtph_ps(h);
#else
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(h)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
#endif
}
QUIRE_INLINE Floats load(const E4m3* p) {
  const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  // The sign is all of the upper byte: shifting by 7 leaves it on top.
  return halves_to_floats(
      _mm256_and_si256(_mm256_slli_epi16(b, 7), _mm256_set1_epi16(static_cast<short>(0xbfff))));
}
QUIRE_INLINE Floats load(const E5m2* p) {
  // The upper bytes of f16 numbers: put there by one instruction, out of both copies.
  const __m256i b =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i places =
      _mm256_setr_epi8(-1, 0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -1, 8, -1, 9, -1, 10,
                       -1, 11, -1, 12, -1, 13, -1, 14, -1, 15);
  return halves_to_floats(_mm256_shuffle_epi8(b, places));
}

// The scales of 16 slots, 1 where there are none.
template <class E>
QUIRE_INLINE Floats powers(const EncodedPart& p, const std::byte* page, std::size_t slot) {
  if constexpr (sizeof(E) > 1) {
    return all(1.0f);
  } else {
    const Floats power = as_floats(shift_left<23>(widen_bytes(page + p.exponents_at + slot)));
    return __is_same(E, E4m3) ? mul(power, all(256.0f)) : power;
  }
}

// To be taken one by one, by four_of.
QUIRE_INLINE Ints four_floats(const float* p) {
  return sixteen_bytes(reinterpret_cast<const std::int8_t*>(p));
}

// 16 slots of each group for kRows rows; dots are those of the first.
template <class E, int kRows, int kV>
QUIRE_INLINE void score_floats_at(const EncodedPart& p, const KeyGroup* groups,
                                  const std::byte* prepared, Ahead& ahead, float* dots) {
  const std::size_t tokens = p.rows.tokens;
  const E* keys[kV];
  for (int v = 0; v < kV; ++v)
    keys[v] = reinterpret_cast<const E*>(groups[v].page) + groups[v].slot;
  Floats s[kRows][kV];
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kV>([&](auto v) QUIRE_LAMBDA { s[r.value][v.value] = zero(); });
  });
  for (std::size_t d = 0; d < p.rows.dim; d += 4) {
    ahead.step();
    Ints held[kRows];
    each<kRows>([&](auto r) QUIRE_LAMBDA {
      held[r.value] =
          four_floats(reinterpret_cast<const float*>(prepared + r.value * p.prepared_bytes) + d);
    });
    each<4>([&](auto j) QUIRE_LAMBDA {
      Floats k[kV];
      each<kV>([&](auto v)
                   QUIRE_LAMBDA { k[v.value] = load(keys[v.value] + (d + j.value) * tokens); });
      each<kRows>([&](auto r) QUIRE_LAMBDA {
        const Floats by = as_floats(four_of<j.value>(held[r.value]));
        each<kV>([&](auto v) QUIRE_LAMBDA {
          s[r.value][v.value] = fma(by, k[v.value], s[r.value][v.value]);
        });
      });
    });
  }
  each<kV>([&](auto v) QUIRE_LAMBDA {
    const Floats power = powers<E>(p, groups[v.value].page, groups[v.value].slot);
    each<kRows>([&](auto r) QUIRE_LAMBDA {
      store(dots + r.value * kEncodedUnit + 16 * v.value,
            sizeof(E) > 1 ? s[r.value][v.value] : mul(s[r.value][v.value], power));
    });
  });
}

template <class E>
void score_floats(const EncodedPart& p, const EncodedUnit& unit, const std::byte* prepared,
                  std::uint32_t n, float* dots) {
  // Of f16 a line of each page at a time: memory is slower where two pages are read at once.
  constexpr int kV = !kWide ? 1 : sizeof(E) == 1 ? 4 : 2;
  KeyGroups groups;
  for (std::uint32_t i = 0; i < unit.page_count; ++i) add_groups(p, unit.pages[i], groups);
  Ahead ahead(unit, row_tiles(n) * (groups.count / kV + groups.count % kV) * p.rows.dim / 4);
  each_tile(n, [&](auto count, std::uint32_t at) QUIRE_LAMBDA {
    const std::byte* rows = prepared + at * p.prepared_bytes;
    float* to = dots + at * kEncodedUnit;
    std::uint32_t g = 0;
    for (; g + kV <= groups.count; g += kV)
      score_floats_at<E, count.value, kV>(p, groups.at + g, rows, ahead, to + 16 * g);
    for (; g < groups.count; ++g)
      score_floats_at<E, count.value, 1>(p, groups.at + g, rows, ahead, to + 16 * g);
  });
}

// Dimensions [at, at + 16 kV) of kRows rows, whose weights times scales are at z.
template <class E, int kRows, int kV>
QUIRE_INLINE void value_floats_at(const EncodedPart& p, const EncodedUnit& unit, std::size_t at,
                                  const float* z, Ahead& ahead, const float* keep,
                                  const float* take, float* out) {
  const std::size_t dim = p.rows.dim;
  Floats sums[kRows][kV];
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kV>([&](auto v) QUIRE_LAMBDA { sums[r.value][v.value] = zero(); });
  });
  for (std::uint32_t i = 0; i < unit.page_count; ++i)
    for (std::uint32_t t = 0; t < p.rows.tokens; t += 4) {
      ahead.step();
      Ints held[kRows];
      each<kRows>([&](auto r) QUIRE_LAMBDA {
        held[r.value] = four_floats(z + r.value * kEncodedUnit + i * p.rows.tokens + t);
      });
      each<4>([&](auto j) QUIRE_LAMBDA {
        const E* values = reinterpret_cast<const E*>(unit.pages[i]) + (t + j.value) * dim + at;
        Floats x[kV];
        each<kV>([&](auto v) QUIRE_LAMBDA { x[v.value] = load(values + 16 * v.value); });
        each<kRows>([&](auto r) QUIRE_LAMBDA {
          const Floats by = as_floats(four_of<j.value>(held[r.value]));
          each<kV>([&](auto v) QUIRE_LAMBDA {
            sums[r.value][v.value] = fma(by, x[v.value], sums[r.value][v.value]);
          });
        });
      });
    }
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kV>([&](auto v) QUIRE_LAMBDA {
      float* to = out + r.value * dim + at + 16 * v.value;
      store(to, fma(sums[r.value][v.value], all(take[r.value]), mul(load(to), all(keep[r.value]))));
    });
  });
}

template <class E>
void value_floats(const EncodedPart& p, const EncodedUnit& unit, const float* weights,
                  std::uint32_t n, const float* keep, const float* take, float* out) {
  const std::size_t dim = p.rows.dim;
  constexpr int kV = kWide ? 4 : 2;
  Ahead ahead(unit,
              row_tiles(n) * (dim / 16 / kV + dim / 16 % kV) * unit.page_count * p.rows.tokens / 4);
  each_tile(n, [&](auto count, std::uint32_t first) QUIRE_LAMBDA {
    alignas(64) float z[count.value * kEncodedUnit];
    for (int r = 0; r < count.value; ++r)
      for (std::uint32_t i = 0; i < unit.page_count; ++i)
        for (std::uint32_t t = 0; t < p.rows.tokens; t += 16) {
          const std::size_t slot = r * kEncodedUnit + i * p.rows.tokens + t;
          const Floats w = load(weights + first * kEncodedUnit + slot);
          store(z + slot, sizeof(E) > 1 ? w : mul(w, powers<E>(p, unit.pages[i], t)));
        }
    std::size_t at = 0;
    for (; at + 16 * kV <= dim; at += 16 * kV)
      value_floats_at<E, count.value, kV>(p, unit, at, z, ahead, keep + first, take + first,
                                          out + first * dim);
    for (; at < dim; at += 16)
      value_floats_at<E, count.value, 1>(p, unit, at, z, ahead, keep + first, take + first,
                                         out + first * dim);
  });
}

// Codecs without kernels of their own: a page at a time becomes one of f32.
EncodedPart part_of_floats(EncodedPart p) {
  p.kind = EncodedKind::f32;
  p.scales = EncodedScales::none;
  return p;
}

void score_decoded(const EncodedPart& p, const EncodedUnit& unit, const std::byte* prepared,
                   std::uint32_t n, float* dots) {
  alignas(64) float page[kEncodedUnit * kCodecDimMax];
  const EncodedPart plain = part_of_floats(p);
  EncodedUnit one{};
  one.pages[0] = reinterpret_cast<const std::byte*>(page);
  one.page_count = 1;
  for (std::uint32_t i = 0; i < unit.page_count; ++i) {
    decode_page(p, unit.pages[i], unit.position + i * p.rows.tokens, page);
    score_floats<float>(plain, one, prepared, n, dots + i * p.rows.tokens);
  }
}

void value_decoded(const EncodedPart& p, const EncodedUnit& unit, const float* weights,
                   std::uint32_t n, const float* keep, const float* take, float* out) {
  alignas(64) float pages[kEncodedUnit * kCodecDimMax];
  EncodedUnit plain{};
  plain.page_count = unit.page_count;
  for (std::uint32_t i = 0; i < unit.page_count; ++i) {
    float* page = pages + std::size_t{i} * p.rows.tokens * p.rows.dim;
    decode_page(p, unit.pages[i], 0, page);
    plain.pages[i] = reinterpret_cast<const std::byte*>(page);
  }
  value_floats<float>(part_of_floats(p), plain, weights, n, keep, take, out);
}

}  // namespace
}  // namespace quire
