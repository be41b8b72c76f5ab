// kernels/cpu/encoded_tile.h - what keys and values of encoded pages have in common: codes out of
// their planes, scales out of their columns, f32 vectors as integers, the Hadamard transform.
#pragma once

#include <utility>

#include "kernels/cpu/bytes.h"
#include "kernels/encoded_layout.h"

namespace quire {
namespace {

inline constexpr int kTwoTerms = 127 * 128;  // M of two terms
// (row, query head) pairs that share unpacked codes. Sanitizers would take minutes to instrument
// more than one.
#ifdef QUIRE_SANITIZED
inline constexpr int kTileRows = 1;
#else
inline constexpr int kTileRows = 3;
#endif

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
  if constexpr (kTileRows > 1)
    for (; i + kTileRows <= n; i += kTileRows) f(Index<kTileRows>{}, i);
  for (; i < n; ++i) f(Index<1>{}, i);
}

constexpr std::size_t row_tiles(std::size_t n) { return n / kTileRows + n % kTileRows; }

// Fetches the pages of the next unit into L2, line by line, evenly over the steps of work on this
// unit. A core can have few misses under way, so a burst of fetches would wait for them. Every step
// fetches the same number of lines, rounded to nearest: a number that varied by step cost more in
// mispredicted branches than the fetching, and rounding down left a third of the lines of 4-bit
// values to the end, in one burst.
class Ahead {
 public:
  Ahead(const EncodedUnit& unit, std::size_t steps)
      : unit_(unit), lines_(static_cast<std::uint32_t>(unit.next_bytes + 63) / 64) {
    const std::uint32_t total = lines_ * unit.next_count, n = static_cast<std::uint32_t>(steps);
    at_step_ = most(1u, n > 0 ? (total + n / 2) / n : total);
    start_page();
  }
  ~Ahead() {
    while (page_ < unit_.next_count) line();
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;

  QUIRE_INLINE void step() {
    if (page_ >= unit_.next_count) return;
    for (std::uint32_t i = 0; i < at_step_; ++i) line();
  }

 private:
  QUIRE_INLINE void line() {
    _mm_prefetch(at_, _MM_HINT_T1);
    at_ += 64;
    if (--left_ == 0) ++page_, start_page();
  }
  QUIRE_INLINE void start_page() {
    if (page_ < unit_.next_count) at_ = reinterpret_cast<const char*>(unit_.next[page_]);
    left_ = lines_;
  }

  const EncodedUnit& unit_;
  const char* at_ = nullptr;
  const std::uint32_t lines_;
  std::uint32_t at_step_, left_, page_ = 0;
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

  // Code vector `index` of the values of a page.
  QUIRE_INLINE static Ints unpack_at(const std::byte* page, std::size_t last_plane,
                                     std::size_t index) {
    const auto take = [&](std::size_t plane, int bits) QUIRE_LAMBDA {
      const std::size_t per = 8 / bits;
      const Ints loaded = load_ints(page + plane + index / per * 64);
      return both(drop_bits(loaded, static_cast<int>(index % per) * bits),
                  all_bytes((1 << bits) - 1));
    };
    if constexpr (!kLast) return take(0, kLow);
    return either(take(0, kLow), shift_left<kLow>(take(last_plane, 1)));
  }
};

// Whether codes, or the levels they stand for, are at most 128.
template <int kBits, bool kLevels, int kTop>
inline constexpr bool kSmallCodes = kLevels ? kTop <= 128 : kBits < 8;

// Whether a register holds sixteen bytes, from which four at a time are broadcast. Broadcasting
// four bytes from memory takes as long as a product. With two terms there are no registers left for
// this.
template <int kTerms>
inline constexpr bool kHoldsBytes = kTerms == 1;

// Four bytes of a query, or of the weights of four slots, in every int32.
QUIRE_INLINE Ints four_bytes(const std::int8_t* p) {
  std::int32_t four;
  __builtin_memcpy(&four, p, 4);
  return all_ints(four);
}

// The sum, of one or two terms.
template <int kTerms>
QUIRE_INLINE Ints whole_sum(const Ints (&sums)[kTerms]) {
  if constexpr (kTerms == 1)
    return sums[0];
  else
    return add(shift_left<7>(sums[0]), sums[1]);
}

// 16 bytes, unsigned, as ints.
QUIRE_INLINE Ints widen_bytes(const void* p) {
  const __m128i b = _mm_loadu_si128(static_cast<const __m128i*>(p));
#ifdef __AVX512F__
  return _mm512_cvtepu8_epi32(b);
#else
  return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
#endif
}

// 16 scales of nvfp4: e4m3 codes, and the exponents of their slots.
QUIRE_INLINE Floats load_fp8(const std::byte* codes, const std::byte* exponents) {
  const Floats power = as_floats(shift_left<23>(widen_bytes(exponents)));
  const Ints code = widen_bytes(codes);
  // In the place of an f32 it is the number times 2^-120.
  const Ints sign = shift_left<24>(both(code, all_ints(0x80)));
  const Ints bits = either(shift_left<20>(both(code, all_ints(0x7f))), sign);
  return mul(mul(as_floats(bits), all(0x1p120f)), power);
}

// How the numbers of four rows become integers: the factor `by` (0 makes all of them 0), and the
// value `scale` of one integer step. `scale` is NaN if a number is not finite; the integers are
// then meaningless.
struct Factors {
  alignas(16) float by[4];
  __m128 scale;
};
// top: as bits, the largest of each row.
template <int kTop>
QUIRE_INLINE Factors factors_for(__m128i top) {
  const __m128i finite = _mm_cmpeq_epi32(top, _mm_min_epu32(top, _mm_set1_epi32(0x7f7fffff)));
  const __m128 a = _mm_castsi128_ps(top), m = _mm_set1_ps(static_cast<float>(kTop));
  const __m128 coded =
      _mm_and_ps(_mm_cmpge_ps(a, _mm_set1_ps(kEncodedLeast)), _mm_castsi128_ps(finite));
  const __m128 other = _mm_andnot_ps(_mm_castsi128_ps(finite), _mm_set1_ps(__builtin_nanf("")));
  Factors f;
  _mm_store_ps(f.by, _mm_and_ps(coded, _mm_div_ps(m, a)));
  f.scale = _mm_or_ps(_mm_and_ps(coded, _mm_div_ps(a, m)), other);
  return f;
}

// 64 integers of two terms as bytes.
struct TwoTerms {
  Ints high, low;
};
QUIRE_INLINE TwoTerms two_terms(Ints (&x)[4]) {
  Ints high[4];
  each<4>([&](auto i) QUIRE_LAMBDA {
    high[i.value] = shift_right<7>(add(x[i.value], all_ints(64)));
    x[i.value] = sub(x[i.value], shift_left<7>(high[i.value]));
  });
  return {pack_bytes<false>(high), pack_bytes<false>(x)};
}

// What remains of a row that was turned into integers, besides its bytes.
struct Integers {
  float scale;  // a / M
  std::int32_t sum;
};

// Turns up to four rows of `count` numbers, a multiple of 16, into bytes. z(row, i) are numbers 16
// i ... 16 i + 15 of a row. High terms go to high + row * stride, low ones to low + row * stride.
template <int kTop, int kRows, class Z>
QUIRE_INLINE void to_integers(std::size_t count, Z z, std::int8_t* high, std::int8_t* low,
                              std::size_t stride, Integers (&out)[kRows]) {
  static_assert(kTop != 255);
  constexpr bool kTwo = kTop > 255;
  Ints vectors[4] = {zero_ints(), zero_ints(), zero_ints(), zero_ints()};
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    for (std::size_t i = 0; i < count / 16; ++i)
      vectors[r.value] = most_unsigned(vectors[r.value], as_ints(size_of(z(r.value, i))));
  });
  const Factors factors = factors_for<kTop>(largest_of_each(vectors));
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    const Floats by = all(factors.by[r.value]);
    std::int8_t *highs = high + r.value * stride, *lows = low + r.value * stride;
    Ints sum = zero_ints();
    const auto code = [&](std::size_t i) QUIRE_LAMBDA {
      const Ints x = rounded(mul(z(r.value, i), by));
      sum = add(sum, x);
      return x;
    };
    std::size_t i = 0;
    for (; i + 4 <= count / 16; i += 4) {
      Ints x[4] = {code(i), code(i + 1), code(i + 2), code(i + 3)};
      if constexpr (kTwo) {
        const TwoTerms terms = two_terms(x);
        store_ints(highs + 16 * i, terms.high);
        store_ints(lows + 16 * i, terms.low);
      } else {
        store_ints(highs + 16 * i, pack_bytes<false>(x));
      }
    }
    for (; i < count / 16; ++i) {
      const Ints x = code(i);
      if constexpr (kTwo) {
        const Ints h = shift_right<7>(add(x, all_ints(64)));
        store_low_bytes(highs + 16 * i, h);
        store_low_bytes(lows + 16 * i, sub(x, shift_left<7>(h)));
      } else {
        store_low_bytes(highs + 16 * i, x);
      }
    }
    vectors[r.value] = sum;
  });
  alignas(16) float scale[4];
  alignas(16) std::int32_t sums[4];
  _mm_store_ps(scale, factors.scale);
  _mm_store_si128(reinterpret_cast<__m128i*>(sums), sums_of(vectors));
  for (int r = 0; r < kRows; ++r) out[r] = {scale[r], sums[r]};
}

// x[i ^ distance] for distance 1, 2, 4, 8.
template <int kDistance>
QUIRE_INLINE Floats swapped(Floats x) {
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
QUIRE_INLINE Floats butterfly(Floats x) {
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
  return add(swapped<kDistance>(x), as_floats(_mm512_xor_si512(bits, signs)));
#else
  return add(swapped<kDistance>(x), as_floats({_mm256_xor_si256(bits.low, signs.low),
                                               _mm256_xor_si256(bits.high, signs.high)}));
#endif
}

// In place, as basis.cc has it. dim is a multiple of 16.
inline void hadamard(std::size_t dim, float* x) {
  const std::size_t size = dim & (~dim + 1);
  const float norm = 1 / __builtin_sqrtf(static_cast<float>(size));
  for (std::size_t i = 0; i < dim; i += 16) {
    const Floats a = butterfly<4>(butterfly<2>(butterfly<1>(load(x + i))));
    store(x + i, butterfly<8>(a));
  }
  for (std::size_t distance = 16; distance < size; distance *= 2)
    for (std::size_t i = 0; i < dim; i += 16)
      if (!(i & distance)) {
        const Floats a = load(x + i), b = load(x + i + distance);
        store(x + i, add(a, b));
        store(x + i + distance, sub(a, b));
      }
  for (std::size_t i = 0; i < dim; i += 16) store(x + i, mul(load(x + i), all(norm)));
}

}  // namespace
}  // namespace quire
