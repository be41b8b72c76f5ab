// kernels/cpu/encoded_tile.h - what keys and values of encoded pages have in common: codes out of
// their planes, scales out of their columns, f32 vectors as integers, the Hadamard transform.
#pragma once

#include <utility>

#include "kernels/cpu/bytes.h"
#include "kernels/encoded_layout.h"

namespace quire {
namespace {

using EncodedScale = EncodedScales;

inline constexpr int kTwoTerms = 127 * 128;  // M of two terms
inline constexpr int kTileRows = 3;          // (row, query head) pairs that share unpacked codes

// Calls f(Index<0>{}) ... f(Index<kN - 1>{}).
template <int kI>
struct Index {
  static constexpr int value = kI;
};
template <class F, int... kI>
QUIRE_INLINE void each_of(std::integer_sequence<int, kI...>, F& f) {
  (f(Index<kI>{}), ...);
}
template <int kN, class F>
QUIRE_INLINE void each(F f) {
  each_of(std::make_integer_sequence<int, kN>{}, f);
}

// Calls f(Index<rows>{}, first) for all n rows.
template <class F>
QUIRE_INLINE void each_tile(std::uint32_t n, F f) {
  std::uint32_t i = 0;
  for (; i + 3 <= n && n - i != 4; i += 3) f(Index<3>{}, i);
  for (; i + 2 <= n; i += 2) f(Index<2>{}, i);
  if (i < n) f(Index<1>{}, i);
}

// Fetches the pages of the next unit into L2, a few lines with each step of the work on this one.
class Ahead {
 public:
  Ahead(const EncodedUnit& unit, std::size_t steps)
      : unit_(unit),
        lines_((unit.next_bytes + 63) / 64),
        per_step_((lines_ * unit.next_count + steps - 1) / steps) {}
  ~Ahead() {
    while (page_ < unit_.next_count) line();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  QUIRE_INLINE void step() {
    for (std::size_t i = 0; i < per_step_ && page_ < unit_.next_count; ++i) line();
  }

 private:
  QUIRE_INLINE void line() {
    _mm_prefetch(reinterpret_cast<const char*>(unit_.next[page_]) + 64 * line_, _MM_HINT_T1);
    if (++line_ >= lines_) line_ = 0, ++page_;
  }

  const EncodedUnit& unit_;
  const std::size_t lines_, per_step_;
  std::size_t line_ = 0;
  std::uint32_t page_ = 0;
};

// How codes of kBits lie: the plane of their low bits, and for 3 and 5 one of the last bit.
template <int kBits>
struct Planes {
  static constexpr bool kLast = kBits == 3 || kBits == 5;
  static constexpr int kLow = kBits & ~1;         // bits in the first plane
  static constexpr int kPer = 8 / kLow;           // code vectors in one vector of that plane
  static constexpr int kStep = kLast ? 8 : kPer;  // code vectors that are unpacked together

  // Code vector kJ of those that start at `low`, whose vectors are `stride` apart; `last` has its
  // last bits at kJ.
  template <int kJ>
  QUIRE_INLINE static Ints unpack(const std::byte* low, std::size_t stride, Ints last) {
    const Ints loaded = load_ints(low + kJ / kPer * stride);
    if constexpr (kBits == 8) {
      return loaded;
    } else {
      const Ints code = both(drop_bits<kJ % kPer * kLow>(loaded), all_bytes((1 << kLow) - 1));
      if constexpr (!kLast) return code;
      const Ints moved = kJ >= kLow ? drop_bits<(kJ >= kLow ? kJ - kLow : 0)>(last)
                                    : shift_left<(kJ < kLow ? kLow - kJ : 0)>(last);
      return either(code, both(moved, all_bytes(1 << kLow)));
    }
  }
};

// Whether codes, or the levels they stand for, are at most 128.
template <int kBits, bool kLevels, int kTop>
inline constexpr bool kSmallCodes = kLevels ? kTop <= 128 : kBits < 8;

// 2 * sum, of one or two terms.
template <int kTerms>
QUIRE_INLINE Ints twice(const Ints (&sums)[kTerms]) {
  if constexpr (kTerms == 1)
    return add(sums[0], sums[0]);
  else
    return add(shift_left<8>(sums[0]), add(sums[1], sums[1]));
}

// e4m3 times 2^-120, in the place of f32.
QUIRE_INLINE Ints widen_bytes(const void* p) {
  const __m128i b = _mm_loadu_si128(static_cast<const __m128i*>(p));
#ifdef __AVX512F__
  return _mm512_cvtepu8_epi32(b);
#else
  return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
#endif
}

// The scales and offsets of a unit as f32, [groups][64].
struct UnitScales {
  alignas(64) float scales[kCodecDimMax / 16 * kEncodedUnit];
  alignas(64) float offsets[kCodecDimMax / 32 * kEncodedUnit];
};

inline void expand_scales(const EncodedPart& p, const EncodedUnit& unit, UnitScales& out) {
  const std::size_t tokens = p.rows.tokens, groups = encoded_groups(p);
  const Lanes centre = all(static_cast<float>(p.centre_twice) * p.half);
  for (std::uint32_t i = 0; i < unit.page_count; ++i) {
    const std::byte* page = unit.pages[i];
    for (std::size_t t = 0; t < tokens; t += 16) {
      float* scales = out.scales + i * tokens + t;
      const auto* halves = reinterpret_cast<const F16*>(page + p.scales_at) + t;
      if (p.scales == EncodedScale::slot_fp8) {
        const Lanes power = as_lanes(shift_left<23>(widen_bytes(page + p.exponents_at + t)));
        for (std::size_t g = 0; g < groups; ++g) {
          const Ints code = widen_bytes(page + p.scales_at + g * tokens + t);
          const Ints sign = shift_left<24>(both(code, all_ints(0x80)));
          const Ints bits = either(shift_left<20>(both(code, all_ints(0x7f))), sign);
          store(scales + g * kEncodedUnit, mul(mul(as_lanes(bits), all(0x1p120f)), power));
        }
        continue;
      }
      for (std::size_t g = 0; g < groups; ++g)
        store(scales + g * kEncodedUnit, load(halves + g * tokens));
      if (p.scales == EncodedScale::slot_pair)
        for (std::size_t g = 0; g < groups; ++g)
          store(out.offsets + g * kEncodedUnit + i * tokens + t,
                fma(centre, load(scales + g * kEncodedUnit), load(halves + (groups + g) * tokens)));
    }
  }
}

// What a vector becomes as integers; the bytes go elsewhere.
struct Integers {
  float scale;  // a / M
  std::int32_t sum;
};

// n, a multiple of 16, numbers of z; bytes of the high terms, and of the low ones at `low`.
template <int kTop>
QUIRE_INLINE Integers to_integers(const float* z, std::size_t n, std::int8_t* high,
                                  std::int8_t* low) {
  constexpr int kTerms = kTop > 255 ? 2 : 1;
  Ints most = zero_ints();
  for (std::size_t i = 0; i < n; i += 16)
    most = most_unsigned(most, both(as_ints(load(z + i)), all_ints(0x7fffffff)));
  const std::uint32_t bits = most_lane(most);
  float a;
  __builtin_memcpy(&a, &bits, 4);
  if (!(a >= kEncodedLeast) || bits >= 0x7f800000u) {
    for (std::size_t i = 0; i < n; i += 16) {
      store_low_bytes(high + i, zero_ints());
      if constexpr (kTerms == 2) store_low_bytes(low + i, zero_ints());
    }
    return {bits >= 0x7f800000u ? __builtin_nanf("") : 0.0f, 0};
  }
  const Lanes by = all(static_cast<float>(kTop) / a);
  Ints sum = zero_ints();
  for (std::size_t i = 0; i < n; i += 16) {
    const Ints x = rounded(mul(load(z + i), by));
    sum = add(sum, x);
    if constexpr (kTerms == 2) {
      const Ints h = shift_right<7>(add(x, all_ints(64)));
      store_low_bytes(high + i, h);
      store_low_bytes(low + i, sub(x, shift_left<7>(h)));
    } else {
      store_low_bytes(high + i, x);
    }
  }
  return {a / static_cast<float>(kTop), add_lanes(sum)};
}

// x[i ^ distance] for distance 1, 2, 4, 8.
template <int kDistance>
QUIRE_INLINE Lanes swapped(Lanes x) {
#ifdef __AVX512F__
  if constexpr (kDistance == 1) return _mm512_permute_ps(x, 0xb1);
  if constexpr (kDistance == 2) return _mm512_permute_ps(x, 0x4e);
  if constexpr (kDistance == 4) return _mm512_shuffle_f32x4(x, x, 0xb1);
  if constexpr (kDistance == 8) return _mm512_shuffle_f32x4(x, x, 0x4e);
#else
  if constexpr (kDistance == 1)
    return {_mm256_permute_ps(x.low, 0xb1), _mm256_permute_ps(x.high, 0xb1)};
  if constexpr (kDistance == 2)
    return {_mm256_permute_ps(x.low, 0x4e), _mm256_permute_ps(x.high, 0x4e)};
  if constexpr (kDistance == 4)
    return {_mm256_permute2f128_ps(x.low, x.low, 1), _mm256_permute2f128_ps(x.high, x.high, 1)};
  if constexpr (kDistance == 8) return {x.high, x.low};
#endif
}

template <int kDistance>
QUIRE_INLINE Lanes butterfly(Lanes x) {
  alignas(64) static constexpr std::uint32_t kSigns[16] = {
      0 & kDistance ? 1u << 31 : 0,  1 & kDistance ? 1u << 31 : 0,  2 & kDistance ? 1u << 31 : 0,
      3 & kDistance ? 1u << 31 : 0,  4 & kDistance ? 1u << 31 : 0,  5 & kDistance ? 1u << 31 : 0,
      6 & kDistance ? 1u << 31 : 0,  7 & kDistance ? 1u << 31 : 0,  8 & kDistance ? 1u << 31 : 0,
      9 & kDistance ? 1u << 31 : 0,  10 & kDistance ? 1u << 31 : 0, 11 & kDistance ? 1u << 31 : 0,
      12 & kDistance ? 1u << 31 : 0, 13 & kDistance ? 1u << 31 : 0, 14 & kDistance ? 1u << 31 : 0,
      15 & kDistance ? 1u << 31 : 0};
  const Ints bits = as_ints(x);
  const Ints signs = load_ints(kSigns);
#ifdef __AVX512F__
  return add(swapped<kDistance>(x), as_lanes(_mm512_xor_si512(bits, signs)));
#else
  return add(swapped<kDistance>(x), as_lanes({_mm256_xor_si256(bits.low, signs.low),
                                              _mm256_xor_si256(bits.high, signs.high)}));
#endif
}

// In place, as basis.cc has it. dim is a multiple of 16.
inline void hadamard(std::size_t dim, float* x) {
  const std::size_t size = dim & (~dim + 1);
  const float norm = 1 / __builtin_sqrtf(static_cast<float>(size));
  for (std::size_t i = 0; i < dim; i += 16) {
    const Lanes a = butterfly<4>(butterfly<2>(butterfly<1>(load(x + i))));
    store(x + i, butterfly<8>(a));
  }
  for (std::size_t distance = 16; distance < size; distance *= 2)
    for (std::size_t i = 0; i < dim; i += 16)
      if (!(i & distance)) {
        const Lanes a = load(x + i), b = load(x + i + distance);
        store(x + i, add(a, b));
        store(x + i + distance, sub(a, b));
      }
  for (std::size_t i = 0; i < dim; i += 16) store(x + i, mul(load(x + i), all(norm)));
}

}  // namespace
}  // namespace quire
