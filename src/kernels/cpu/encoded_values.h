// kernels/cpu/encoded_values.h - weighted sums of encoded values: 16 dimensions by four slots of
// codes are one vector, multiplied by the weights of four slots as bytes.
#pragma once

#include "kernels/cpu/encoded_tile.h"

namespace quire {
namespace {

inline constexpr std::uint32_t kChunk = 4;  // vectors of 16 dimensions that are summed together

// The scales and offsets of a unit as f32, [groups][128], and the largest scale of each slot. What is
// past the unit's slots is 0.
struct UnitScales {
  alignas(64) float scales[kCodecDimMax / 16 * kEncodedUnit];
  alignas(64) float offsets[kCodecDimMax / 32 * kEncodedUnit];
  alignas(64) float most[kEncodedUnit];
};

// kGroups, unless 0, is their number.
template <int kGroups, class Scale>
QUIRE_INLINE void expand_by(const EncodedPart& p, const EncodedUnit& unit, bool pairs,
                            UnitScales& out, Scale scale_of) {
  const std::size_t tokens = p.rows.tokens, groups = kGroups != 0 ? kGroups : encoded_groups(p);
  const Floats centre = all(p.centre * p.step);
  std::uint32_t slot = 0;
  for (std::uint32_t i = 0; i < unit.page_count; ++i)
    for (std::uint32_t t = 0; t < tokens; t += 16, slot += 16) {
      const std::byte* page = unit.pages[i];
      Ints most = zero_ints();
      for (std::size_t g = 0; g < groups; ++g) {
        const Floats scale = scale_of(page, g * tokens + t, t);
        most = most_unsigned(most, as_ints(size_of(scale)));
        store(out.scales + g * kEncodedUnit + slot, scale);
        if (pairs) {
          const auto* least = reinterpret_cast<const F16*>(page + p.scales_at) + groups * tokens;
          store(out.offsets + g * kEncodedUnit + slot,
                fma(centre, scale, load(least + g * tokens + t)));
        }
      }
      store(out.most + slot, as_floats(most));
    }
  for (; slot < kEncodedUnit; slot += 16) {
    for (std::size_t g = 0; g < groups; ++g) {
      store(out.scales + g * kEncodedUnit + slot, zero());
      if (pairs) store(out.offsets + g * kEncodedUnit + slot, zero());
    }
    store(out.most + slot, zero());
  }
}

template <int kTerms>
QUIRE_INLINE void expand_scales(const EncodedPart& p, const EncodedUnit& unit, UnitScales& out) {
  const auto sized = [](Floats x) QUIRE_LAMBDA { return kTerms == 1 ? size_of(x) : x; };
  const auto half = [&](const std::byte* page, std::size_t at, std::size_t) QUIRE_LAMBDA {
    return sized(load(reinterpret_cast<const F16*>(page + p.scales_at) + at));
  };
  const bool pairs = p.scales == EncodedScales::slot_pair;
  if (p.scales == EncodedScales::slot_fp8)
    expand_by<0>(p, unit, false, out,
                 [&](const std::byte* page, std::size_t at, std::size_t t) QUIRE_LAMBDA {
                   return sized(load_fp8(page + p.scales_at + at, page + p.exponents_at + t));
                 });
  else if (!pairs && encoded_groups(p) == 2)
    expand_by<2>(p, unit, false, out, half);
  else
    expand_by<0>(p, unit, pairs, out, half);
}

// The weights of some rows, times the scales of one group after the other, as bytes, and what the
// sums of codes times these become: sum * unit[row] + base[group][row].
template <int kTerms, int kRows>
struct WeightTile {
  alignas(64) std::int8_t bytes[kCodecDimMax / 16][kRows][kTerms][kEncodedUnit];
  alignas(16) float unit[4];
  alignas(16) float base[kCodecDimMax / 16][4];
};

// Numbers to which this is added are integers in their low bits.
inline constexpr float kRoundToBits = 12582912.0f;  // 1.5 * 2^23

// weights: [kRows][128], 0 past the unit's slots.
template <int kTerms, int kRows>
QUIRE_INLINE void fill_weights(const EncodedPart& p, const UnitScales& scales, const float* weights,
                               const float* take, WeightTile<kTerms, kRows>& tile) {
  constexpr int kVectors = kEncodedUnit / 16, kTop = kTerms == 2 ? kTwoTerms : 255;
  const std::size_t groups = encoded_groups(p);
  Ints vectors[4] = {zero_ints(), zero_ints(), zero_ints(), zero_ints()};
  each<kVectors>([&](auto i) QUIRE_LAMBDA {
    const Floats most = load(scales.most + 16 * i.value);
    each<kRows>([&](auto r) QUIRE_LAMBDA {
      const Floats z = mul(load(weights + r.value * kEncodedUnit + 16 * i.value), most);
      vectors[r.value] = most_unsigned(vectors[r.value], as_ints(z));
    });
  });
  const Factors factors = factors_for<kTop>(largest_of_each(vectors));
  Ints sums[kCodecDimMax / 16][4];
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    const Floats by = all(factors.by[r.value]);
    Floats w[kVectors];
    each<kVectors>([&](auto i) QUIRE_LAMBDA {
      w[i.value] = mul(load(weights + r.value * kEncodedUnit + 16 * i.value), by);
    });
    for (std::size_t g = 0; g < groups; ++g) {
      Ints sum[kTerms];
      for (Ints& x : sum) x = zero_ints();
      each<kVectors / 4>([&](auto four) QUIRE_LAMBDA {
        Ints x[4];
        each<4>([&](auto k) QUIRE_LAMBDA {
          constexpr int kI = 4 * four.value + k.value;
          x[k.value] = as_ints(
              fma(w[kI], load(scales.scales + g * kEncodedUnit + 16 * kI), all(kRoundToBits)));
          if constexpr (kTerms == 2) x[k.value] = sub(x[k.value], as_ints(all(kRoundToBits)));
        });
        if constexpr (kTerms == 2) {
          const TwoTerms terms = two_terms(x);
          store_ints(tile.bytes[g][r.value][0] + 64 * four.value, terms.high);
          store_ints(tile.bytes[g][r.value][1] + 64 * four.value, terms.low);
          sum[0] = dot<true>(sum[0], all_bytes(1), terms.high);
          sum[1] = dot<true>(sum[1], all_bytes(1), terms.low);
        } else {
          const Ints bytes = pack_bytes<true>(x);
          store_ints(tile.bytes[g][r.value][0] + 64 * four.value, bytes);
          sum[0] = dot<true>(sum[0], bytes, all_bytes(1));
        }
      });
      sums[g][r.value] = whole_sum(sum);
    }
  });
  alignas(16) float takes[4] = {};
  for (int r = 0; r < kRows; ++r) takes[r] = take[r];
  const __m128 unit = _mm_mul_ps(factors.scale, _mm_set1_ps(p.step)), by = _mm_load_ps(takes);
  _mm_store_ps(tile.unit, _mm_mul_ps(unit, by));
  for (std::size_t g = 0; g < groups; ++g) {
    each<4 - kRows>([&](auto r) QUIRE_LAMBDA { sums[g][kRows + r.value] = zero_ints(); });
    const __m128 middle = _mm_mul_ps(_mm_cvtepi32_ps(sums_of(sums[g])), _mm_set1_ps(-p.centre));
    __m128 base = _mm_setzero_ps();
    if (p.scales == EncodedScales::slot_pair) {
      Floats offsets[4] = {zero(), zero(), zero(), zero()};
      each<kVectors>([&](auto i) QUIRE_LAMBDA {
        const Floats x = load(scales.offsets + g * kEncodedUnit + 16 * i.value);
        each<kRows>([&](auto r) QUIRE_LAMBDA {
          offsets[r.value] =
              fma(load(weights + r.value * kEncodedUnit + 16 * i.value), x, offsets[r.value]);
        });
      });
      base = sums_of(offsets);
    }
    _mm_store_ps(tile.base[g], _mm_mul_ps(_mm_fmadd_ps(middle, unit, base), by));
  }
}

// Adds four slots of codes times their weights, which are unsigned where there is one term; codes
// are small then.
template <bool kSmall, int kTerms>
QUIRE_INLINE Ints weigh(Ints sum, Ints codes, Ints weights) {
  if constexpr (kTerms == 1)
    return dot<true>(sum, weights, codes);
  else
    return dot<kSmall>(sum, codes, weights);
}

// The sums of 16 dimensions into one row's output.
template <int kTerms, int kRows>
QUIRE_INLINE void take_in(const Ints (&sums)[kTerms], const WeightTile<kTerms, kRows>& tile, int r,
                          std::size_t g, float keep, float* out) {
  const Floats kept = fma(load(out), all(keep), all(tile.base[g][r]));
  store(out, fma(to_floats(whole_sum(sums)), all(tile.unit[r]), kept));
}

// Codes of two bits are multiplied where they lie in their bytes; only the last would be negative
// there.
template <int kBits, int kV>
inline constexpr bool kStaysUp = kBits == 2 && kV < 3;

// Dimensions [16 first, 16 first + 64); kShare vectors of them have one scale.
template <int kBits, int kTop, int kTerms, int kShare, int kRows>
void value_chunk(const EncodedPart& p, const EncodedUnit& unit, std::size_t first,
                 const WeightTile<kTerms, kRows>& tile, Ahead& ahead, const float* keep,
                 float* out) {
  using P = Planes<kBits>;
  constexpr bool kLevels = kTop != 0, kSmall = kSmallCodes<kBits, kLevels, kTop>;
  constexpr int kGroups = kChunk / kShare;
  constexpr bool kHolds = kHoldsBytes<kTerms> && kShare > 1 && kBits != 2;
  const std::size_t dim = p.rows.dim, chunks = dim / 64, quads = p.rows.tokens / 4;
  const std::size_t group = 16 * first / p.group;  // of the first vector
  Table levels{};
  if constexpr (kLevels) levels = table_of(p.levels);
  Ints sums[kRows][kChunk][kTerms];
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kChunk>([&](auto v) QUIRE_LAMBDA {
      for (Ints& sum : sums[r.value][v.value]) sum = zero_ints();
    });
  });
  const auto add_quad = [&](auto j, const std::byte* page, std::size_t quad, std::size_t slot,
                            const auto& held) QUIRE_LAMBDA {
    ahead.step();
    const std::size_t at = quad * chunks + first / kChunk;  // in chunks of the page
    const std::byte* low = page + at * (kChunk / P::kPer * 64);
    Ints last = zero_ints();
    if constexpr (P::kLast)
      last = drop_bits(load_ints(page + p.plane_at + at / 2 * 64), static_cast<int>(at % 2 * 4));
    Ints codes[kChunk];
    each<kChunk>([&](auto v) QUIRE_LAMBDA {
      if constexpr (kStaysUp<kBits, v.value>)
        codes[v.value] = both(load_ints(low), all_bytes(3 << 2 * v.value));
      else
        codes[v.value] = P::template unpack<v.value>(low, 64, last);
      if constexpr (kLevels) codes[v.value] = look_up(levels, codes[v.value]);
    });
    each<kRows>([&](auto r) QUIRE_LAMBDA {
      each<kGroups>([&](auto g) QUIRE_LAMBDA {
        each<kTerms>([&](auto term) QUIRE_LAMBDA {
          Ints by;
          if constexpr (kHolds)
            by = four_of<j.value>(held[r.value][g.value]);
          else
            by = four_bytes(&tile.bytes[group + g.value][r.value][term.value][slot + 4 * j.value]);
          each<kShare>([&](auto k) QUIRE_LAMBDA {
            constexpr int kV = g.value * kShare + k.value;
            Ints& sum = sums[r.value][kV][term.value];
            sum = weigh<kSmall, kTerms>(sum, codes[kV], by);
          });
        });
      });
    });
  };
  for (std::uint32_t i = 0; i < unit.page_count; ++i)
    for (std::size_t quad = 0; quad < quads; quad += 4) {
      const std::size_t slot = i * p.rows.tokens + 4 * quad;
      Ints held[kRows][kGroups];
      if constexpr (kHolds)
        each<kRows>([&](auto r) QUIRE_LAMBDA {
          each<kGroups>([&](auto g) QUIRE_LAMBDA {
            held[r.value][g.value] = sixteen_bytes(&tile.bytes[group + g.value][r.value][0][slot]);
          });
        });
      each<4>([&](auto j) QUIRE_LAMBDA { add_quad(j, unit.pages[i], quad + j.value, slot, held); });
    }
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kChunk>([&](auto v) QUIRE_LAMBDA {
      if constexpr (kStaysUp<kBits, v.value>)
        sums[r.value][v.value][0] = shift_right<2 * v.value>(sums[r.value][v.value][0]);
      take_in(sums[r.value][v.value], tile, r.value, group + v.value / kShare, keep[r.value],
              out + r.value * dim + 16 * (first + v.value));
    });
  });
}

// Dimensions [16 first, 16 first + 16), for heads that are not made of 64.
template <int kBits, int kTop, int kTerms, int kRows>
void value_vector(const EncodedPart& p, const EncodedUnit& unit, std::size_t first,
                  const WeightTile<kTerms, kRows>& tile, Ahead& ahead, const float* keep,
                  float* out) {
  using P = Planes<kBits>;
  constexpr bool kLevels = kTop != 0, kSmall = kSmallCodes<kBits, kLevels, kTop>;
  const std::size_t dim = p.rows.dim, group = 16 * first / p.group;
  Table levels{};
  if constexpr (kLevels) levels = table_of(p.levels);
  Ints sums[kRows][kTerms];
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    for (Ints& sum : sums[r.value]) sum = zero_ints();
  });
  for (std::uint32_t i = 0; i < unit.page_count; ++i)
    for (std::size_t quad = 0; quad < p.rows.tokens / 4; ++quad) {
      ahead.step();
      Ints codes = P::unpack_at(unit.pages[i], p.plane_at, quad * (dim / 16) + first);
      if constexpr (kLevels) codes = look_up(levels, codes);
      const std::size_t slot = i * p.rows.tokens + 4 * quad;
      each<kRows>([&](auto r) QUIRE_LAMBDA {
        each<kTerms>([&](auto term) QUIRE_LAMBDA {
          Ints& sum = sums[r.value][term.value];
          sum = weigh<kSmall, kTerms>(sum, codes,
                                      four_bytes(&tile.bytes[group][r.value][term.value][slot]));
        });
      });
    }
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    take_in(sums[r.value], tile, r.value, group, keep[r.value], out + r.value * dim + 16 * first);
  });
}

template <int kBits, int kTop, int kTerms, int kShare>
void value_codes(const EncodedPart& p, const EncodedUnit& unit, const float* weights,
                 std::uint32_t n, const float* keep, const float* take, float* out) {
  const std::size_t dim = p.rows.dim, slots = unit.page_count * p.rows.tokens;
  UnitScales scales;
  expand_scales<kTerms>(p, unit, scales);
  Ahead ahead(unit, row_tiles(n) * (dim % 64 == 0 ? dim / 64 : dim / 16) * slots / 4);
  each_tile(n, [&](auto count, std::uint32_t at) QUIRE_LAMBDA {
    WeightTile<kTerms, count.value> tile;
    const float* w = weights + at * kEncodedUnit;
    alignas(64) float padded[count.value * kEncodedUnit];
    if (slots < kEncodedUnit) {
      __builtin_memset(padded, 0, sizeof padded);
      for (int r = 0; r < count.value; ++r)
        __builtin_memcpy(padded + r * kEncodedUnit, w + r * kEncodedUnit, slots * sizeof(float));
      w = padded;
    }
    fill_weights(p, scales, w, take + at, tile);
    const auto by = [&](auto f, std::size_t step) QUIRE_LAMBDA {
      for (std::size_t v = 0; v < dim / 16; v += step)
        f(p, unit, v, tile, ahead, keep + at, out + at * dim);
    };
    if (dim % 64 == 0)
      by(value_chunk<kBits, kTop, kTerms, kShare, count.value>, kChunk);
    else
      by(value_vector<kBits, kTop, kTerms, count.value>, 1);
  });
}

void finish(const EncodedPart& p, std::uint32_t n, float* out) {
  const std::uint32_t dim = p.rows.dim;
  const Basis basis = p.codec->basis(Side::values);
  if (basis == Basis::plain) return;
  if (dim % 16 != 0) return kEncodedScalar.finish(p, n, out);
  for (std::uint32_t r = 0; r < n; ++r) {
    hadamard(dim, out + std::size_t{r} * dim);
    if (basis == Basis::signed_hadamard) flip_basis_signs(dim, out + std::size_t{r} * dim);
  }
}

}  // namespace
}  // namespace quire
