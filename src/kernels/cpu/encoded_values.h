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
  std::int8_t bytes[kRows][kCodecDimMax / 16][kTerms][kEncodedUnit];
  float scale[kRows][kCodecDimMax / 16], base[kRows][kCodecDimMax / 16];
  std::int32_t centre[kRows][kCodecDimMax / 16];
};

template <int kTerms, int kRows>
QUIRE_INLINE void fill_weights(const EncodedPart& p, const UnitScales& scales, std::size_t slots,
                               const float* weights, WeightTile<kTerms, kRows>& tile) {
  const std::size_t groups = encoded_groups(p);
  for (int r = 0; r < kRows; ++r) {
    const float* w = weights + r * kEncodedUnit;
    for (std::size_t g = 0; g < groups; ++g) {
      alignas(64) float z[kEncodedUnit];
      for (std::size_t t = 0; t < slots; t += 16)
        store(z + t, mul(load(w + t), load(scales.scales + g * kEncodedUnit + t)));
      auto& bytes = tile.bytes[r][g];
      constexpr int kM = kTerms == 2 ? kTwoTerms : 255;
      const Integers whole = to_integers<kM>(z, slots, bytes[0], bytes[kTerms - 1]);
      tile.scale[r][g] = whole.scale * p.half;
      tile.centre[r][g] = -p.centre_twice * whole.sum;
      tile.base[r][g] = 0;
      if (p.scales != EncodedScale::slot_pair) continue;
      Lanes sum = zero();
      for (std::size_t t = 0; t < slots; t += 16)
        sum = fma(load(w + t), load(scales.offsets + g * kEncodedUnit + t), sum);
      tile.base[r][g] = add_lanes(sum);
    }
  }
}

// Dimensions [16 first, 16 first + 64); kShare vectors of them have one scale.
template <int kBits, int kTop, int kTerms, int kShare, int kRows>
QUIRE_INLINE void value_chunk(const EncodedPart& p, const EncodedUnit& unit, std::size_t first,
                              const WeightTile<kTerms, kRows>& tile, Ahead& ahead,
                              const float* keep, const float* take, float* out) {
  using P = Planes<kBits>;
  constexpr bool kLevels = kTop != 0, kSmall = kSmallCodes<kBits, kLevels, kTop>;
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
  for (std::uint32_t i = 0; i < unit.page_count; ++i)
    for (std::size_t quad = 0; quad < quads; ++quad) {
      ahead.step();
      const std::size_t at = quad * chunks + first / kChunk;  // in chunks of the page
      const std::byte* low = unit.pages[i] + at * (kChunk / P::kPer * 64);
      const std::size_t slot = i * p.rows.tokens + 4 * quad;
      Ints last = zero_ints();
      if constexpr (P::kLast)
        last = drop_bits(load_ints(unit.pages[i] + p.plane_at + at / 2 * 64),
                         static_cast<int>(at % 2 * 4));
      Ints codes[kChunk];
      each<kChunk>([&](auto v) QUIRE_LAMBDA {
        codes[v.value] = P::template unpack<v.value>(low, 64, last);
        if constexpr (kLevels) codes[v.value] = look_up(levels, codes[v.value]);
      });
      each<kRows>([&](auto r) QUIRE_LAMBDA {
        each<kChunk / kShare>([&](auto g) QUIRE_LAMBDA {
          each<kTerms>([&](auto term) QUIRE_LAMBDA {
            std::int32_t four;
            __builtin_memcpy(&four, &tile.bytes[r.value][group + g.value][term.value][slot], 4);
            const Ints by = all_ints(four);
            each<kShare>([&](auto k) QUIRE_LAMBDA {
              constexpr int kV = g.value * kShare + k.value;
              Ints& sum = sums[r.value][kV][term.value];
              if constexpr (kTerms == 1)
                sum = dot<true>(sum, by, codes[kV]);  // weights are unsigned, codes small
              else
                sum = dot<kSmall>(sum, codes[kV], by);
            });
          });
        });
      });
    }
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kChunk>([&](auto v) QUIRE_LAMBDA {
      const std::size_t g = group + v.value / kShare;
      const Lanes sum =
          to_floats(add(twice(sums[r.value][v.value]), all_ints(tile.centre[r.value][g])));
      const Lanes o = fma(sum, all(tile.scale[r.value][g]), all(tile.base[r.value][g]));
      float* to = out + r.value * dim + 16 * (first + v.value);
      store(to, fma(o, all(take[r.value]), mul(load(to), all(keep[r.value]))));
    });
  });
}

template <int kBits, int kTop, int kTerms, int kShare>
void value_codes(const EncodedPart& p, const EncodedUnit& unit, const float* weights,
                 std::uint32_t n, const float* keep, const float* take, float* out) {
  const std::size_t dim = p.rows.dim, slots = unit.page_count * p.rows.tokens;
  UnitScales scales;
  expand_scales(p, unit, scales);
  Ahead ahead(unit, (n + kTileRows - 1) / kTileRows * dim / 64 * slots / 4 + 1);
  each_tile(n, [&](auto count, std::uint32_t at) QUIRE_LAMBDA {
    WeightTile<kTerms, count.value> tile;
    fill_weights(p, scales, slots, weights + at * kEncodedUnit, tile);
    for (std::size_t v = 0; v < dim / 16; v += kChunk)
      value_chunk<kBits, kTop, kTerms, kShare, count.value>(p, unit, v, tile, ahead, keep + at,
                                                            take + at, out + at * dim);
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
