// kernels/cpu/encoded_keys.h - scores of encoded keys: 16 slots by four dimensions of codes are one
// vector, multiplied by four bytes of the query.
#pragma once

#include "kernels/cpu/encoded_tile.h"

namespace quire {
namespace {

// Where the scales of keys are: per slot, per slot with an offset, per slot in fp8, or already in the
// query.
enum class KeyScales { slot, pair, fp8, query };

using ConstRow = PreparedRow<const std::byte>;

template <int kTerms>
inline constexpr int kKeyTop = kTerms == 2 ? kTwoTerms : 127;

// Four dimensions that are taken at a time, times this.
template <int kBits>
constexpr int key_run() {
  return Planes<kBits>::kStep < 4 ? 4 : Planes<kBits>::kStep;
}

struct KeyGroup {  // 16 slots
  const std::byte *page, *codes;
  std::uint32_t slot;  // of the page
};
struct KeyGroups {
  KeyGroup at[kEncodedUnit / 16];
  std::uint32_t count = 0;
};

inline void add_groups(const EncodedPart& p, const std::byte* page, KeyGroups& groups) {
  for (std::uint32_t t = 0; t < p.rows.tokens; t += 16)
    groups.at[groups.count++] = {page, page + 4 * t, t};
}

// The scales and offsets of 16 slots for a group of dimensions.
template <KeyScales kScales>
QUIRE_INLINE Floats key_scale(const EncodedPart& p, const KeyGroup& slots, std::size_t group) {
  const std::size_t at = group * p.rows.tokens + slots.slot;
  if constexpr (kScales == KeyScales::fp8)
    return load_fp8(slots.page + p.scales_at + at, slots.page + p.exponents_at + slots.slot);
  else
    return load(reinterpret_cast<const F16*>(slots.page + p.scales_at) + at);
}
QUIRE_INLINE Floats key_offset(const EncodedPart& p, const KeyGroup& slots, std::size_t group,
                               Floats scale) {
  const Floats least = key_scale<KeyScales::slot>(p, slots, encoded_groups(p) + group);
  return fma(all(p.centre * p.step), scale, least);
}

// Groups [first, first + kV) for kRows rows; dots are those of group `first`.
template <int kBits, int kTop, KeyScales kScales, int kTerms, int kRows, int kV>
void score_tile(const EncodedPart& p, const KeyGroups& groups, std::uint32_t first,
                const ConstRow (&rows)[kRows], Ahead& ahead, float* dots) {
  using P = Planes<kBits>;
  constexpr bool kLevels = kTop != 0, kSmall = kSmallCodes<kBits, kLevels, kTop>;
  constexpr bool kHolds = kHoldsBytes<kTerms>;
  constexpr int kRun = key_run<kBits>();
  const std::size_t dim = p.rows.dim, stride = 4 * p.rows.tokens;
  Table levels{};
  if constexpr (kLevels) levels = table_of(p.levels);
  Floats s[kRows][kV];
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kV>([&](auto v) QUIRE_LAMBDA { s[r.value][v.value] = zero(); });
  });
  for (std::size_t d = 0, b = 0; d < dim; d += p.block, ++b) {
    Ints sums[kRows][kV][kTerms];
    each<kRows>([&](auto r) QUIRE_LAMBDA {
      each<kV>([&](auto v) QUIRE_LAMBDA {
        for (Ints& sum : sums[r.value][v.value]) sum = zero_ints();
      });
    });
    const std::size_t end = least(d + p.block, dim) / 4;
    for (std::size_t at = d / 4; at < end; at += kRun) {
      ahead.step();
      Ints held[kHolds ? kRows : 1][kRun / 4];
      if constexpr (kHolds)
        each<kRows>([&](auto r) QUIRE_LAMBDA {
          each<kRun / 4>([&](auto four) QUIRE_LAMBDA {
            held[r.value][four.value] =
                sixteen_bytes(rows[r.value].bytes + 4 * at + 16 * four.value);
          });
        });
      each<kRun>([&](auto j) QUIRE_LAMBDA {
        Ints codes[kV];
        each<kV>([&](auto v) QUIRE_LAMBDA {
          const std::byte* codes_at = groups.at[first + v.value].codes;
          const std::byte* low = codes_at + at / P::kPer * stride;
          Ints last = zero_ints();
          if constexpr (P::kLast) last = load_ints(codes_at + p.plane_at + at / 8 * stride);
          codes[v.value] = P::template unpack<j.value>(low, stride, last);
          if constexpr (kLevels) codes[v.value] = look_up(levels, codes[v.value]);
        });
        each<kRows>([&](auto r) QUIRE_LAMBDA {
          each<kTerms>([&](auto term) QUIRE_LAMBDA {
            Ints by;
            if constexpr (kHolds)
              by = four_of<j.value % 4>(held[r.value][j.value / 4]);
            else
              by = four_bytes(rows[r.value].bytes + term.value * dim + 4 * (at + j.value));
            each<kV>([&](auto v) QUIRE_LAMBDA {
              Ints& sum = sums[r.value][v.value][term.value];
              sum = dot<kSmall>(sum, codes[v.value], by);
            });
          });
        });
      });
    }
    const std::size_t g = p.block == p.group ? b : 0;  // a block, or all of them
    each<kV>([&](auto v) QUIRE_LAMBDA {
      const KeyGroup& slots = groups.at[first + v.value];
      Floats scale = zero(), offset = zero();
      if constexpr (kScales != KeyScales::query) scale = key_scale<kScales>(p, slots, g);
      if constexpr (kScales == KeyScales::pair) offset = key_offset(p, slots, g, scale);
      each<kRows>([&](auto r) QUIRE_LAMBDA {
        const ConstRow& row = rows[r.value];
        Floats& to = s[r.value][v.value];
        const Floats sum =
            fma(to_floats(whole_sum(sums[r.value][v.value])), all(row.unit[b]), all(row.middle[b]));
        to = kScales == KeyScales::query ? sum : fma(sum, scale, to);
        if constexpr (kScales == KeyScales::pair) to = fma(all(row.sum[b]), offset, to);
      });
    });
  }
  each<kRows>([&](auto r) QUIRE_LAMBDA {
    each<kV>([&](auto v) QUIRE_LAMBDA {
      store(dots + r.value * kEncodedUnit + 16 * v.value, s[r.value][v.value]);
    });
  });
}

// All groups, as many at a time as registers hold.
template <int kBits, int kTop, KeyScales kScales, int kTerms, int kRows>
QUIRE_INLINE void score_groups(const EncodedPart& p, const KeyGroups& groups,
                               const ConstRow (&rows)[kRows], Ahead& ahead, float* dots) {
  const auto some = [&](auto v, std::uint32_t first) QUIRE_LAMBDA {
    score_tile<kBits, kTop, kScales, kTerms, kRows, v.value>(p, groups, first, rows, ahead,
                                                             dots + 16 * first);
  };
  std::uint32_t first = 0;
  if constexpr (kWide && kTileRows > 1) {
    for (; first + 4 <= groups.count; first += 4) some(Index<4>{}, first);
    if constexpr (kScales == KeyScales::query)  // whose pages, of 32 slots, come one by one
      for (; first + 2 <= groups.count; first += 2) some(Index<2>{}, first);
  }
  for (; first < groups.count; ++first) some(Index<1>{}, first);
}

// Tiles that score_groups makes of some groups.
constexpr std::size_t key_tiles(std::size_t groups, KeyScales scales) {
  if (!kWide || kTileRows == 1) return groups;
  const std::size_t left = groups % 4;
  return groups / 4 + (scales == KeyScales::query ? left / 2 + left % 2 : left);
}

template <int kBits, int kTop, KeyScales kScales, int kTerms>
void score_codes(const EncodedPart& p, const EncodedUnit& unit, const std::byte* prepared,
                 std::uint32_t n, float* dots) {
  KeyGroups groups;
  for (std::uint32_t i = 0; i < unit.page_count; ++i) add_groups(p, unit.pages[i], groups);
  Ahead ahead(unit,
              row_tiles(n) * key_tiles(groups.count, kScales) * p.rows.dim / 4 / key_run<kBits>());
  each_tile(n, [&](auto count, std::uint32_t at) QUIRE_LAMBDA {
    ConstRow rows[count.value];
    for (int r = 0; r < count.value; ++r) rows[r] = prepared_row(p, prepared, at + r);
    score_groups<kBits, kTop, kScales, kTerms, count.value>(p, groups, rows, ahead,
                                                            dots + at * kEncodedUnit);
  });
}

// Some rows times the steps of a page, as integers.
template <int kTerms, int kRows>
struct ChannelQuery {
  std::int8_t bytes[kRows][2 * kCodecDimMax];
  float unit[kRows], base[kRows];

  QUIRE_INLINE void set(const EncodedPart& p, const std::byte* page, const std::byte* prepared) {
    const std::size_t dim = p.rows.dim;
    const auto* halves = reinterpret_cast<const F16*>(page + p.scales_at);
    const Floats centre = all(p.centre * p.step);
    const float* q[kRows];
    for (int r = 0; r < kRows; ++r)
      q[r] = reinterpret_cast<const float*>(prepared + r * p.prepared_bytes);
    alignas(64) float steps[kCodecDimMax];
    Floats sums[4] = {zero(), zero(), zero(), zero()};
    for (std::size_t d = 0; d < dim; d += 16) {
      const Floats step = load(halves + d), offset = fma(centre, step, load(halves + dim + d));
      store(steps + d, step);
      each<kRows>([&](auto r) QUIRE_LAMBDA {
        sums[r.value] = fma(load(q[r.value] + d), offset, sums[r.value]);
      });
    }
    Integers whole[kRows];
    to_integers<kKeyTop<kTerms>>(
        dim,
        [&](int r, std::size_t v)
            QUIRE_LAMBDA { return mul(load(q[r] + 16 * v), load(steps + 16 * v)); },
        bytes[0], bytes[0] + dim, sizeof bytes[0], whole);
    alignas(16) float offsets[4];
    _mm_store_ps(offsets, sums_of(sums));
    for (int r = 0; r < kRows; ++r) {
      unit[r] = whole[r].scale * p.step;
      base[r] = __builtin_fmaf(static_cast<float>(whole[r].sum) * -p.centre, unit[r], offsets[r]);
    }
  }
};

// KIVI: each page's steps are multiplied into the query first. All pages before the first product:
// what there is to wait for in one is then done in another.
template <int kBits, int kTerms>
void score_channels(const EncodedPart& p, const EncodedUnit& unit, const std::byte* prepared,
                    std::uint32_t n, float* dots) {
  Ahead ahead(unit, row_tiles(n) * unit.page_count *
                        key_tiles(p.rows.tokens / 16, KeyScales::query) * p.rows.dim / 4 /
                        key_run<kBits>());
  each_tile(n, [&](auto count, std::uint32_t at) QUIRE_LAMBDA {
    ChannelQuery<kTerms, count.value> queries[kEncodedPagesMax];
    for (std::uint32_t i = 0; i < unit.page_count; ++i)
      queries[i].set(p, unit.pages[i], prepared + at * p.prepared_bytes);
    for (std::uint32_t i = 0; i < unit.page_count; ++i) {
      KeyGroups groups;
      add_groups(p, unit.pages[i], groups);
      const auto& query = queries[i];
      ConstRow rows[count.value];
      for (int r = 0; r < count.value; ++r)
        rows[r] = {&query.unit[r], nullptr, &query.base[r], query.bytes[r]};
      score_groups<kBits, 0, KeyScales::query, kTerms, count.value>(
          p, groups, rows, ahead, dots + at * kEncodedUnit + i * p.rows.tokens);
    }
  });
}

template <int kTerms>
void prepare_codes(const EncodedPart& p, const float* q, const PreparedRow<std::byte>& row) {
  for (std::uint32_t d = 0, b = 0; d < p.rows.dim; d += p.block, ++b) {
    const std::uint32_t size = least(p.block, p.rows.dim - d);
    Integers whole[1];
    to_integers<kKeyTop<kTerms>>(
        size, [&](int, std::size_t i) QUIRE_LAMBDA { return load(q + d + 16 * i); }, row.bytes + d,
        row.bytes + p.rows.dim + d, 0, whole);
    Floats sum = zero();
    for (std::uint32_t i = 0; i < size; i += 16) sum = add(sum, load(q + d + i));
    row.unit[b] = whole[0].scale * p.step;
    row.sum[b] = add_elements(sum);
    row.middle[b] = static_cast<float>(whole[0].sum) * -p.centre * row.unit[b];
  }
}

void prepare(const EncodedPart& p, const float* queries, std::size_t stride, std::uint32_t n,
             std::byte* prepared) {
  const std::uint32_t dim = p.rows.dim;
  if (dim % 16 != 0) return kEncodedScalar.prepare(p, queries, stride, n, prepared);
  const Basis basis = p.codec->basis(Side::keys);
  alignas(64) float q[kCodecDimMax];
  for (std::uint32_t r = 0; r < n; ++r) {
    std::byte* to = prepared + r * p.prepared_bytes;
    __builtin_memcpy(q, queries + r * stride, dim * sizeof(float));
    if (basis == Basis::signed_hadamard) flip_basis_signs(dim, q);
    if (basis != Basis::plain) hadamard(dim, q);
    __builtin_memset(to + p.prepared_bytes - 64, 0, 64);  // the padding
    if (row_is_float(p))
      __builtin_memcpy(to, q, dim * sizeof(float));
    else if (p.terms == 2)
      prepare_codes<2>(p, q, prepared_row(p, prepared, r));
    else
      prepare_codes<1>(p, q, prepared_row(p, prepared, r));
  }
}

}  // namespace
}  // namespace quire
