// kernels/cpu/encoded_seal.h - pages of f16 into codes, 16 slots at a time: a vector is one
// dimension of 16 slots, on both sides (values are turned first), so that the scale of a slot needs
// no horizontal step. Codes are collected in the order of codec.h, a byte each, then packed into
// planes. What is computed is what the files of format/ say.
#pragma once

#include "format/levels.h"
#include "kernels/cpu/encoded_halves.h"
#include "kernels/cpu/encoded_tile.h"

namespace quire {
namespace {

struct Sealing {
  const EncodedPart& p;
  const std::byte* rows;
  std::byte* page;
  std::uint8_t* codes;  // of the page, a byte each; the page itself where that is the layout
  std::uint32_t slot;   // the first of the 16 at hand
  float* x;             // [dim][16], in the codec's basis
};

// The 16 slots at `s.slot` into s.x.
inline void load_slots(const Sealing& s) {
  const std::size_t dim = s.p.rows.dim, tokens = s.p.rows.tokens;
  const auto* from = reinterpret_cast<const F16*>(s.rows);
  if (s.p.side == Side::keys) {
    for (std::size_t d = 0; d < dim; ++d)
      store(s.x + 16 * d, cleaned(load(from + d * tokens + s.slot)));
  } else {
    for (std::size_t t = 0; t < 16; ++t)
      for (std::size_t d = 0; d < dim; d += 16) {
        alignas(64) float row[16];
        store(row, cleaned(load(from + (s.slot + t) * dim + d)));
        for (std::size_t i = 0; i < 16; ++i) s.x[16 * (d + i) + t] = row[i];
      }
  }
  const Basis basis = s.p.codec->basis(s.p.side);
  if (basis == Basis::plain) return;
  if (basis == Basis::signed_hadamard) {
    float signs[kCodecDimMax];
    for (std::size_t d = 0; d < dim; ++d) signs[d] = 1;
    flip_basis_signs(static_cast<std::uint32_t>(dim), signs);
    for (std::size_t d = 0; d < dim; ++d)
      store(s.x + 16 * d, mul(load(s.x + 16 * d), all(signs[d])));
  }
  const std::size_t size = dim & (~dim + 1);
  for (std::size_t distance = 1; distance < size; distance *= 2)
    for (std::size_t d = 0; d < dim; ++d)
      if (!(d & distance)) {
        const Floats a = load(s.x + 16 * d), b = load(s.x + 16 * (d + distance));
        store(s.x + 16 * d, add(a, b));
        store(s.x + 16 * (d + distance), sub(a, b));
      }
  const Floats norm = all(1 / __builtin_sqrtf(static_cast<float>(size)));
  for (std::size_t d = 0; d < dim; ++d) store(s.x + 16 * d, mul(load(s.x + 16 * d), norm));
}

// Codes code(d), one int per slot, of dimensions [first, first + n); n is a multiple of 16.
template <class F>
QUIRE_INLINE void put_codes(const Sealing& s, std::size_t first, std::size_t n, F code) {
  const std::size_t dim = s.p.rows.dim, tokens = s.p.rows.tokens;
  if (s.p.side == Side::keys) {
    for (std::size_t d = first; d < first + n; d += 4)
      store_ints(s.codes + d * tokens + 4 * s.slot,
                 either(either(code(d), shift_left<8>(code(d + 1))),
                        either(shift_left<16>(code(d + 2)), shift_left<24>(code(d + 3)))));
    return;
  }
  for (std::size_t d = first; d < first + n; ++d) {
    alignas(16) std::int8_t four[16];
    store_low_bytes(four, code(d));
    for (std::size_t quad = 0; quad < 4; ++quad)
      __builtin_memcpy(s.codes + (s.slot + 4 * quad) * dim + 4 * d, four + 4 * quad, 4);
  }
}

inline void put_column(const Sealing& s, std::size_t index, Ints halves) {
  store_halves(s.page + s.p.scales_at + 2 * (index * s.p.rows.tokens + s.slot), halves);
}

QUIRE_INLINE Floats inverse_of(Floats step) {
  return choose(less(zero(), size_of(step)), div(all(1.0f), step), zero());
}

// To nearest, within [low, high].
QUIRE_INLINE Ints bounded(Floats x, float low, float high) {
  return rounded(min(max(x, all(low)), all(high)));
}

// Root mean squares of n elements, in the order that root_mean_square() of format/codes.h says.
inline Floats root_mean_squares(const float* x, std::size_t n) {
  Floats part[32];
  for (std::size_t p = 0; p < 32; ++p) {
    part[p] = zero();
    for (std::size_t d = p * (n / 32); d < (p + 1) * (n / 32); ++d)
      part[p] = fma(load(x + 16 * d), load(x + 16 * d), part[p]);
  }
  for (std::size_t apart = 16; apart > 0; apart /= 2)
    for (std::size_t p = 0; p < apart; ++p) part[p] = add(part[p], part[p + apart]);
  return root(div(part[0], all(static_cast<float>(n))));
}

enum class Grid { rounded, signed_max, midpoint, gaussian_midpoint };

template <Grid kGrid>
void seal_symmetric(const Sealing& s) {
  const float half = static_cast<float>(1u << (s.p.bits - 1));
  for (std::size_t g = 0; g < encoded_groups(s.p); ++g) {
    const float* x = s.x + 16 * g * s.p.group;
    Floats size = zero(), first = zero();  // the largest magnitude; the first element that has it
    for (std::size_t d = 0; d < s.p.group; ++d) {
      const Floats a = load(x + 16 * d);
      if constexpr (kGrid == Grid::signed_max) first = choose(less(size, size_of(a)), a, first);
      size = max(size, size_of(a));
    }
    Ints scale;
    if constexpr (kGrid == Grid::rounded)
      scale = halves_up(max(div(size, all(half - 1)), all(1e-6f)));
    else if constexpr (kGrid == Grid::gaussian_midpoint)
      scale = halves_up(div(root_mean_squares(x, s.p.group), all(kGaussianStep)));
    else
      scale = halves_up(div(size, all(half)));
    if constexpr (kGrid == Grid::signed_max)
      scale = choose(less(zero(), first), either(scale, all_ints(0x8000)), scale);
    put_column(s, g, scale);
    const Floats inverse = inverse_of(from_halves(scale));
    put_codes(s, g * s.p.group, s.p.group, [&](std::size_t d) QUIRE_LAMBDA {
      const Floats steps = mul(load(s.x + 16 * d), inverse);
      if constexpr (kGrid == Grid::rounded)
        return add(bounded(steps, 1 - half, half - 1), all_ints(static_cast<int>(half)));
      else if constexpr (kGrid == Grid::signed_max)
        return bounded(add(steps, all(half)), 0, 2 * half - 1);
      else
        return bounded(floored(add(steps, all(half))), 0, 2 * half - 1);
    });
  }
}

// Step and smallest element as f16, of groups between these.
struct Pair {
  Ints step, least;
};
QUIRE_INLINE Pair pair_of(Floats least, Floats most, float top) {
  least = add(least, zero());  // no negative zero
  Ints bottom = to_halves(least);
  const Ints below = choose(less(as_floats(bottom), as_floats(all_ints(0x8000))),
                            sub(bottom, all_ints(1)), add(bottom, all_ints(1)));
  bottom = choose(less(least, from_halves(bottom)), below, bottom);
  const Floats range = sub(most, from_halves(bottom));
  const Floats step = choose(less(zero(), size_of(range)), div(range, all(top)), all(1.0f));
  return {halves_up(step), bottom};
}

void seal_pairs(const Sealing& s) {
  const float top = static_cast<float>((1u << s.p.bits) - 1);
  const std::size_t groups = encoded_groups(s.p);
  for (std::size_t g = 0; g < groups; ++g) {
    const float* x = s.x + 16 * g * s.p.group;
    Floats low = load(x), high = low;
    for (std::size_t d = 1; d < s.p.group; ++d) {
      low = min(low, load(x + 16 * d));
      high = max(high, load(x + 16 * d));
    }
    const Pair pair = pair_of(low, high, top);
    put_column(s, g, pair.step);
    put_column(s, groups + g, pair.least);
    const Floats inverse = div(all(1.0f), from_halves(pair.step)), least = from_halves(pair.least);
    put_codes(s, g * s.p.group, s.p.group, [&](std::size_t d) QUIRE_LAMBDA {
      return bounded(mul(sub(load(s.x + 16 * d), least), inverse), 0, top);
    });
  }
}

// KIVI's keys: the steps of each dimension were found over the whole page.
struct Channels {
  float inverse[kCodecDimMax], least[kCodecDimMax];
};

void find_channels(const Sealing& s, Channels& out) {
  const std::size_t dim = s.p.rows.dim, tokens = s.p.rows.tokens;
  const auto* from = reinterpret_cast<const F16*>(s.rows);
  for (std::size_t d = 0; d < dim; ++d) {
    Floats low = cleaned(load(from + d * tokens)), high = low;
    for (std::size_t t = 16; t < tokens; t += 16) {
      low = min(low, cleaned(load(from + d * tokens + t)));
      high = max(high, cleaned(load(from + d * tokens + t)));
    }
    const float least = -largest_of(sub(zero(), low));
    const Pair pair =
        pair_of(all(least), all(largest_of(high)), static_cast<float>((1u << s.p.bits) - 1));
    alignas(64) std::uint32_t steps[16], leasts[16];
    store_ints(steps, pair.step);
    store_ints(leasts, pair.least);
    std::byte* to = s.page + s.p.scales_at + 2 * d;
    __builtin_memcpy(to, steps, 2);
    __builtin_memcpy(to + 2 * dim, leasts, 2);
    alignas(64) float elements[16];
    store(elements, div(all(1.0f), from_halves(pair.step)));
    out.inverse[d] = elements[0];
    store(elements, from_halves(pair.least));
    out.least[d] = elements[0];
  }
}

void seal_channels(const Sealing& s, const Channels& c) {
  const float top = static_cast<float>((1u << s.p.bits) - 1);
  put_codes(s, 0, s.p.rows.dim, [&](std::size_t d) QUIRE_LAMBDA {
    return bounded(mul(sub(load(s.x + 16 * d), all(c.least[d])), all(c.inverse[d])), 0, top);
  });
}

// The exponent fields of the smallest powers of two s with largest / s <= top.
QUIRE_INLINE Ints powers_for(Floats largest, float top) {
  const Ints bits = as_ints(div(largest, all(top)));
  const Ints e = most_unsigned(drop_bits<23>(add(bits, all_ints(0x7fffff))), all_ints(1));
  return choose(less(zero(), largest), e, all_ints(127));
}

// To an 8-bit float of kMantissa bits, exponents from kLeast on, nothing above kMax.
template <int kMantissa, int kLeast, int kMax>
QUIRE_INLINE Ints to_fp8(Floats x) {
  const Floats a = min(size_of(x), all(static_cast<float>(kMax)));
  // Exponents are compared as fields, which are positive.
  const Ints field = most_unsigned(drop_bits<23>(as_ints(a)), all_ints(kLeast + 127));
  const Ints whole =
      rounded(mul(a, as_floats(shift_left<23>(sub(all_ints(kMantissa + 254), field)))));
  const Ints sign = both(drop_bits<24>(as_ints(x)), all_ints(0x80));
  return either(sign, add(shift_left<kMantissa>(sub(field, all_ints(kLeast + 127))), whole));
}

template <int kMantissa, int kLeast, int kMax>
void seal_fp8(const Sealing& s) {
  const std::size_t dim = s.p.rows.dim, tokens = s.p.rows.tokens;
  Floats size = all(kFp8LeastScale * kMax);
  for (std::size_t d = 0; d < dim; ++d) size = max(size, size_of(load(s.x + 16 * d)));
  const Ints power = powers_for(size, kMax);
  store_low_bytes(reinterpret_cast<std::int8_t*>(s.page + s.p.exponents_at + s.slot), power);
  const Floats inverse = div(all(1.0f), as_floats(shift_left<23>(power)));
  auto* to = reinterpret_cast<std::int8_t*>(s.page);
  for (std::size_t d = 0; d < dim; ++d) {
    const Ints code = to_fp8<kMantissa, kLeast, kMax>(mul(load(s.x + 16 * d), inverse));
    if (s.p.side == Side::keys) {
      store_low_bytes(to + d * tokens + s.slot, code);
    } else {
      std::int8_t slots[16];
      store_low_bytes(slots, code);
      for (std::size_t t = 0; t < 16; ++t) to[(s.slot + t) * dim + d] = slots[t];
    }
  }
}

void seal_nvfp4(const Sealing& s) {
  constexpr float kMiddles[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5};
  Floats size = zero();
  for (std::size_t d = 0; d < s.p.rows.dim; ++d) size = max(size, size_of(load(s.x + 16 * d)));
  const Ints power = powers_for(div(size, all(6.0f)), 448);
  store_low_bytes(reinterpret_cast<std::int8_t*>(s.page + s.p.exponents_at + s.slot), power);
  const Floats whole = as_floats(shift_left<23>(power)), shrink = div(all(1.0f), whole);
  for (std::size_t g = 0; g < encoded_groups(s.p); ++g) {
    Floats most = zero();
    for (std::size_t d = 0; d < 16; ++d) most = max(most, size_of(load(s.x + 256 * g + 16 * d)));
    const Ints scale = to_fp8<3, -6, 448>(mul(div(most, all(6.0f)), shrink));
    store_low_bytes(
        reinterpret_cast<std::int8_t*>(s.page + s.p.scales_at + g * s.p.rows.tokens + s.slot),
        scale);
    const Floats step = mul(mul(as_floats(shift_left<20>(scale)), all(0x1p120f)), whole);
    const Floats inverse = inverse_of(step);
    put_codes(s, 16 * g, 16, [&](std::size_t d) QUIRE_LAMBDA {
      const Floats x = mul(load(s.x + 16 * d), inverse), a = size_of(x);
      Ints code = both(drop_bits<28>(as_ints(x)), all_ints(8));
      each<7>([&](auto i) QUIRE_LAMBDA {  // ties go to the even code
        const Floats middle = all(kMiddles[i.value]);
        const Ints more = i.value % 2 == 0 ? choose(less(middle, a), all_ints(1), zero_ints())
                                           : choose(less(a, middle), zero_ints(), all_ints(1));
        code = add(code, more);
      });
      return code;
    });
  }
}

template <int kBits>
void seal_turbo(const Sealing& s) {
  constexpr int kLevels = 1 << kBits;
  const std::uint8_t* levels = kBits == 3 ? kTurboLevels3 : kTurboLevels4;
  constexpr float kUnit = kBits == 3 ? kTurboUnit3 : kTurboUnit4;
  const std::size_t dim = s.p.rows.dim;
  float level[kLevels];
  for (int i = 0; i < kLevels; ++i) level[i] = static_cast<float>(levels[i] - 128) * kUnit;
  // By 16 accumulators, dimension mod 16, and a tree.
  const auto norm_of = [&](auto element) QUIRE_LAMBDA {
    Floats sums[16];
    for (std::size_t d = 0; d < 16; ++d) sums[d] = mul(element(d), element(d));
    for (std::size_t d = 16; d < dim; ++d) sums[d % 16] = fma(element(d), element(d), sums[d % 16]);
    for (std::size_t apart = 8; apart > 0; apart /= 2)
      for (std::size_t i = 0; i < apart; ++i) sums[i] = add(sums[i], sums[i + apart]);
    return root(sums[0]);
  };
  const Floats norm = norm_of([&](std::size_t d) { return load(s.x + 16 * d); });
  const Floats unit =
      choose(less(zero(), norm), div(all(__builtin_sqrtf(static_cast<float>(dim))), norm), zero());
  const auto code_at = [&](std::size_t d) QUIRE_LAMBDA {
    const Floats x = mul(load(s.x + 16 * d), unit);
    Ints code = zero_ints();
    for (int i = 0; i + 1 < kLevels; ++i)
      code = add(code,
                 choose(less(x, all(0.5f * (level[i] + level[i + 1]))), zero_ints(), all_ints(1)));
    return code;
  };
  put_codes(s, 0, dim, [&](std::size_t d) QUIRE_LAMBDA {
    const Ints code = code_at(d);
    alignas(64) std::uint32_t codes[16];
    store_ints(codes, code);
    for (std::size_t t = 0; t < 16; ++t) s.x[16 * d + t] = level[codes[t]];  // for its norm
    return code;
  });
  const Floats own = norm_of([&](std::size_t d) { return load(s.x + 16 * d); });
  put_column(s, 0, to_halves(min(div(norm, own), all(65504.0f))));
}

// Codes of a byte each into planes of kBits.
template <int kBits>
void pack_planes(const EncodedPart& p, const std::uint8_t* codes, std::byte* page) {
  const std::size_t bytes = std::size_t{p.rows.tokens} * p.rows.dim;
  const std::size_t vector = p.side == Side::keys ? 4 * p.rows.tokens : 64;
  const auto pack = [&](std::byte* plane, auto width, auto shift) QUIRE_LAMBDA {
    constexpr int kWidth = width.value, kPer = 8 / kWidth;
    for (std::size_t from = 0; from < bytes; from += kPer * vector)
      for (std::size_t at = 0; at < vector; at += 64) {
        Ints packed = zero_ints();
        each<kPer>([&](auto j) QUIRE_LAMBDA {
          const std::size_t here = from + j.value * vector + at;
          if (here >= bytes) return;
          const Ints part =
              both(drop_bits<shift.value>(load_ints(codes + here)), all_bytes((1 << kWidth) - 1));
          packed = either(packed, shift_left<j.value * kWidth>(part));
        });
        store_ints(plane + from / kPer + at, packed);
      }
  };
  pack(page, Index<Planes<kBits>::kLow>{}, Index<0>{});
  if constexpr (Planes<kBits>::kLast)
    pack(page + p.plane_at, Index<1>{}, Index<Planes<kBits>::kLow>{});
}

void seal_slots(const Sealing& s, const Channels& channels) {
  const EncodedPart& p = s.p;
  switch (p.scales) {
    case EncodedScales::slot_pair:
      return seal_pairs(s);
    case EncodedScales::page_pair:
      return seal_channels(s, channels);
    case EncodedScales::slot_fp8:
      return seal_nvfp4(s);
    case EncodedScales::slot_power:
      return p.kind == EncodedKind::e4m3 ? seal_fp8<3, -6, 448>(s) : seal_fp8<2, -14, 57344>(s);
    case EncodedScales::slot_f16:
    case EncodedScales::none:
      break;
  }
  if (p.levels != nullptr) return p.bits == 4 ? seal_turbo<4>(s) : seal_turbo<3>(s);
  if (p.codec->scale_is_mean) return seal_symmetric<Grid::gaussian_midpoint>(s);
  if (static_cast<int>(2 * p.centre) % 2 != 0) return seal_symmetric<Grid::midpoint>(s);
  return p.bits == 8 ? seal_symmetric<Grid::rounded>(s) : seal_symmetric<Grid::signed_max>(s);
}

void seal(const EncodedPart& p, const std::byte* rows, std::byte* page) {
  const std::uint32_t tokens = p.rows.tokens, dim = p.rows.dim;
  const bool lossy = p.kind == EncodedKind::codes || p.scales == EncodedScales::slot_power;
  if (!lossy || tokens % 16 != 0 || dim % 16 != 0) return kEncodedScalar.seal(p, rows, page);
  alignas(64) float x[16 * kCodecDimMax];
  alignas(64) std::uint8_t codes[kEncodedUnit * kCodecDimMax];
  Channels channels;
  __builtin_memset(page, 0, p.page_bytes);
  const bool as_they_are = p.bits == 8;
  Sealing s{p, rows, page, as_they_are ? reinterpret_cast<std::uint8_t*>(page) : codes, 0, x};
  if (p.scales == EncodedScales::page_pair) find_channels(s, channels);
  for (; s.slot < tokens; s.slot += 16) {
    load_slots(s);
    seal_slots(s, channels);
  }
  switch (as_they_are ? 0 : p.bits) {
    case 5:
      return pack_planes<5>(p, codes, page);
    case 4:
      return pack_planes<4>(p, codes, page);
    case 3:
      return pack_planes<3>(p, codes, page);
    case 2:
      return pack_planes<2>(p, codes, page);
    default:
      return;
  }
}

}  // namespace
}  // namespace quire
