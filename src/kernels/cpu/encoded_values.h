// kernels/cpu/encoded_values.h - weighted sums of encoded values: 16 dimensions by four slots of
// codes are one vector, multiplied by the weights of four slots as bytes.
#pragma once

#include "kernels/cpu/encoded_tile.h"

namespace quire {
namespace {

inline constexpr std::uint32_t kChunk = 4;  // vectors of 16 dimensions that are summed together

// The weights of some rows, times the scales of one group after the other, as bytes.
template <int kTerms, int kRows>
struct WeightTile {
  std::int8_t bytes[kCodecDimMax / 16][kRows][kTerms][kEncodedUnit];
  float scale[kRows][kCodecDimMax / 16], base[kRows][kCodecDimMax / 16];
  std::int32_t centre[kRows][kCodecDimMax / 16];

  static constexpr int kTop = kTerms == 2 ? kTwoTerms : 255;

  QUIRE_INLINE void set(const EncodedPart& p, int r, std::size_t g, const Integers& whole) {
    scale[r][g] = whole.scale * p.half;
    centre[r][g] = -p.centre_twice * whole.sum;
    base[r][g] = 0;
  }
};

// Rows one after the other, a row's numbers in registers: of a whole unit, and few groups.
template <int kGroups, int kTerms, int kRows>
QUIRE_INLINE void fill_whole(const EncodedPart& p, const UnitScales& scales, const float* weights,
                             WeightTile<kTerms, kRows>& tile) {
  constexpr int kVectors = kEncodedUnit / 16;
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    Lanes z[kGroups][kVectors];
    each<kVectors>([&](auto i) QUIRE_LAMBDA {
      const Lanes w = load(weights + r.value * kEncodedUnit + 16 * i.value);
      each<kGroups>([&](auto g) QUIRE_LAMBDA {
        z[g.value][i.value] = mul(w, load(scales.scales + g.value * kEncodedUnit + 16 * i.value));
      });
    });
    Integers whole[kGroups];
    to_integers<WeightTile<kTerms, kRows>::kTop, kVectors>(
        kVectors, [&](int g, std::size_t i) QUIRE_LAMBDA { return z[g][i]; },
        tile.bytes[0][r.value][0], tile.bytes[0][r.value][kTerms - 1],
        kRows * kTerms * kEncodedUnit, whole);
    each<kGroups>([&](auto g) QUIRE_LAMBDA { tile.set(p, r.value, g.value, whole[g.value]); });
  });
}

template <int kTerms, int kRows>
QUIRE_INLINE void fill_weights(const EncodedPart& p, const UnitScales& scales, std::size_t vectors,
                               const float* weights, WeightTile<kTerms, kRows>& tile) {
  for (std::size_t g = 0; g < encoded_groups(p); ++g) {
    const auto weighted = [&](int r, std::size_t i) QUIRE_LAMBDA {
      return mul(load(weights + r * kEncodedUnit + 16 * i),
                 load(scales.scales + g * kEncodedUnit + 16 * i));
    };
    Integers whole[kRows];
    to_integers<WeightTile<kTerms, kRows>::kTop, 0>(vectors, weighted, tile.bytes[g][0][0],
                                                    tile.bytes[g][0][kTerms - 1],
                                                    kTerms * kEncodedUnit, whole);
    for (int r = 0; r < kRows; ++r) tile.set(p, r, g, whole[r]);
  }
}

template <int kTerms, int kRows>
void add_offsets(const EncodedPart& p, const UnitScales& scales, std::size_t vectors,
                 const float* weights, WeightTile<kTerms, kRows>& tile) {
  for (std::size_t g = 0; g < encoded_groups(p); ++g)
    for (int r = 0; r < kRows; ++r) {
      Lanes sum = zero();
      for (std::size_t i = 0; i < vectors; ++i)
        sum = fma(load(weights + r * kEncodedUnit + 16 * i),
                  load(scales.offsets + g * kEncodedUnit + 16 * i), sum);
      tile.base[r][g] = add_lanes(sum);
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
                          std::size_t g, float keep, float take, float* out) {
  const Lanes sum = to_floats(add(twice(sums), all_ints(tile.centre[r][g])));
  const Lanes o = fma(sum, all(tile.scale[r][g]), all(tile.base[r][g]));
  store(out, fma(o, all(take), mul(load(out), all(keep))));
}

// Dimensions [16 first, 16 first + 64); kShare vectors of them have one scale.
template <int kBits, int kTop, int kTerms, int kShare, int kRows>
void value_chunk(const EncodedPart& p, const EncodedUnit& unit, std::size_t first,
                 const WeightTile<kTerms, kRows>& tile, Ahead& ahead, const float* keep,
                 const float* take, float* out) {
  using P = Planes<kBits>;
  constexpr bool kLevels = kTop != 0, kSmall = kSmallCodes<kBits, kLevels, kTop>;
  constexpr int kGroups = kChunk / kShare;
  constexpr bool kHolds = kHoldsBytes<kTerms> && kShare > 1;
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
      take_in(sums[r.value][v.value], tile, r.value, group + v.value / kShare, keep[r.value],
              take[r.value], out + r.value * dim + 16 * (first + v.value));
    });
  });
}

// Dimensions [16 first, 16 first + 16), for heads that are not made of 64.
template <int kBits, int kTop, int kTerms, int kRows>
void value_vector(const EncodedPart& p, const EncodedUnit& unit, std::size_t first,
                  const WeightTile<kTerms, kRows>& tile, Ahead& ahead, const float* keep,
                  const float* take, float* out) {
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
    take_in(sums[r.value], tile, r.value, group, keep[r.value], take[r.value],
            out + r.value * dim + 16 * first);
  });
}

template <int kBits, int kTop, int kTerms, int kShare>
void value_codes(const EncodedPart& p, const EncodedUnit& unit, const float* weights,
                 std::uint32_t n, const float* keep, const float* take, float* out) {
  const std::size_t dim = p.rows.dim, slots = unit.page_count * p.rows.tokens;
  UnitScales scales;
  expand_scales(p, unit, scales);
  Ahead ahead(unit, row_tiles(n) * (dim % 64 == 0 ? dim / 64 : dim / 16) * slots / 4);
  each_tile(n, [&](auto count, std::uint32_t at) QUIRE_LAMBDA {
    WeightTile<kTerms, count.value> tile;
    const float* const w = weights + at * kEncodedUnit;
    if (kShare > 1 && slots == kEncodedUnit && dim == 64)
      fill_whole<4 / kShare>(p, scales, w, tile);
    else
      fill_weights(p, scales, slots / 16, w, tile);
    if (p.scales == EncodedScales::slot_pair) add_offsets(p, scales, slots / 16, w, tile);
    const auto by = [&](auto f, std::size_t step) QUIRE_LAMBDA {
      for (std::size_t v = 0; v < dim / 16; v += step)
        f(p, unit, v, tile, ahead, keep + at, take + at, out + at * dim);
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
