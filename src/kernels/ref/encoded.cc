#include "kernels/encoded.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "format/codes.h"
#include "format/fp8.h"
#include "kernels/encoded_layout.h"
#include "kernels/ref/math.h"

namespace quire {
namespace {

using Kind = EncodedKind;
using Scales = EncodedScales;

// The largest magnitude; they compare as their bits do, NaN above all.
float largest(const float* z, std::uint32_t n) {
  std::uint32_t bits = 0;
  for (std::uint32_t i = 0; i < n; ++i)
    bits = std::max(bits, std::bit_cast<std::uint32_t>(z[i]) & 0x7fffffffu);
  return std::bit_cast<float>(bits);
}

// For numbers of at most a: the factor that makes integers of them (0: all are 0), and its inverse.
struct Integer {
  float by, scale;
};
Integer integer_for(float a, float top) {
  if (!std::isfinite(a)) return {0, std::numeric_limits<float>::quiet_NaN()};
  return a >= kEncodedLeast ? Integer{top / a, a / top} : Integer{0, 0};
}

// z as integers; returns a / M.
float to_integers(const float* z, std::uint32_t n, float top, std::int32_t* out) {
  const Integer whole = integer_for(largest(z, n), top);
  for (std::uint32_t i = 0; i < n; ++i)
    out[i] = whole.by != 0 ? static_cast<std::int32_t>(std::nearbyint(z[i] * whole.by)) : 0;
  return whole.scale;
}

// -C times the sum of i.
float middle_of(const EncodedPart& p, const std::int32_t* i, std::uint32_t n) {
  std::int64_t sum = 0;
  for (std::uint32_t k = 0; k < n; ++k) sum += i[k];
  return static_cast<float>(sum) * -p.centre;
}

// Sum of x * y as 16 partial sums and the tree; y may be null for ones.
float sum_products(const float* x, const float* y, std::uint32_t n) {
  float sums[16] = {};
  for (std::uint32_t i = 0; i < n; ++i)
    sums[i % 16] = y ? std::fma(x[i], y[i], sums[i % 16]) : sums[i % 16] + x[i];
  return ref::add_tree(sums);
}

struct Page {
  const EncodedPart& part;
  const std::byte* bytes;

  float half(std::size_t index, std::uint32_t slot, std::uint32_t tokens) const {
    std::uint16_t h;
    std::memcpy(&h, bytes + part.scales_at + 2 * (index * tokens + slot), 2);
    return f16_to_f32(h);
  }
  float power(std::uint32_t slot) const {
    return power_of_two(std::to_integer<std::uint8_t>(bytes[part.exponents_at + slot]));
  }
  // Of slot `t` (Scales::page_pair: of the page) and group or dimension `g`.
  float scale(std::uint32_t g, std::uint32_t t) const {
    switch (part.scales) {
      case Scales::none:
        return 1;
      case Scales::slot_f16:
      case Scales::slot_pair:
        return half(g, t, part.rows.tokens);
      case Scales::page_pair:
        return half(g, 0, 1);
      case Scales::slot_fp8:
        return e4m3_finite(bytes[part.scales_at + g * part.rows.tokens + t]) * power(t);
      case Scales::slot_power:
        return part.kind == Kind::e4m3 ? power(t) * 256 : power(t);
    }
    return 1;
  }
  // As values are weighted by it: unsigned where weights are.
  float size(std::uint32_t g, std::uint32_t t) const {
    const bool unsigned_weights =
        part.side == Side::values && part.kind == Kind::codes && part.terms == 1;
    return unsigned_weights ? std::fabs(scale(g, t)) : scale(g, t);
  }
  bool has_offsets() const {
    return part.scales == Scales::slot_pair || part.scales == Scales::page_pair;
  }
  float offset(std::uint32_t g, std::uint32_t t) const {
    const float centre = part.centre * part.step;
    if (part.scales == Scales::page_pair)
      return std::fma(centre, half(g, 0, 1), half(part.rows.dim + g, 0, 1));
    const auto groups = static_cast<std::uint32_t>(encoded_groups(part));
    return std::fma(centre, size(g, t), half(groups + g, t, part.rows.tokens));
  }
  std::int32_t level(std::uint32_t t, std::uint32_t d) const {
    const std::uint32_t c = Codes(bytes, part.side, part.rows, part.bits).get(t, d);
    return part.levels ? part.levels[c] : static_cast<std::int32_t>(c);
  }
  float element(std::uint32_t t, std::uint32_t d) const {
    const std::size_t i = part.side == Side::keys ? std::size_t{d} * part.rows.tokens + t
                                                  : std::size_t{t} * part.rows.dim + d;
    std::uint16_t h;
    float f;
    switch (part.kind) {
      case Kind::f32:
        std::memcpy(&f, bytes + 4 * i, 4);
        return f;
      case Kind::f16:
      case Kind::bf16:
        std::memcpy(&h, bytes + 2 * i, 2);
        return part.kind == Kind::f16 ? f16_to_f32(h) : bf16_to_f32(h);
      case Kind::e4m3:  // an f16 with its exponent 8 lower; the scale makes up for it
        return e4m3_finite(bytes[i]) * 0x1p-8f;
      default:
        return e5m2_to_f32(std::to_integer<std::uint8_t>(bytes[i]));
    }
  }
  // NaN is not stored; its code is read as the next number would be.
  static float e4m3_finite(std::byte b) {
    const auto code = std::to_integer<std::uint8_t>(b);
    const float size = (code & 0x7f) == 0x7f ? 480 : e4m3_to_f32(code & 0x7f);
    return code & 0x80 ? -size : size;
  }
};

void prepare(const EncodedPart& p, const float* queries, std::size_t stride, std::uint32_t n,
             std::byte* prepared) {
  const std::uint32_t dim = p.rows.dim;
  float q[kCodecDimMax];
  std::int32_t i[kCodecDimMax];
  std::memset(prepared, 0, n * p.prepared_bytes);
  for (std::uint32_t r = 0; r < n; ++r) {
    std::memcpy(q, queries + r * stride, dim * sizeof(float));
    to_basis(p.codec->basis(Side::keys), dim, q);
    if (row_is_float(p)) {
      std::memcpy(prepared + r * p.prepared_bytes, q, dim * sizeof(float));
      continue;
    }
    const auto row = prepared_row(p, prepared, r);
    for (std::uint32_t d = 0, b = 0; d < dim; d += p.block, ++b) {
      const std::uint32_t size = std::min(p.block, dim - d);
      row.unit[b] = to_integers(q + d, size, p.top, i + d) * p.step;
      row.sum[b] = sum_products(q + d, nullptr, size);
      row.middle[b] = middle_of(p, i + d, size) * row.unit[b];
    }
    for (std::uint32_t d = 0; d < dim; ++d) {
      const std::int32_t high = p.terms == 2 ? (i[d] + 64) >> 7 : i[d];
      row.bytes[d] = static_cast<std::int8_t>(high);
      if (p.terms == 2) row.bytes[dim + d] = static_cast<std::int8_t>(i[d] - high * 128);
    }
  }
}

// Sum of i * c over dimensions [from, to) of slot t.
float key_sum(const Page& page, std::uint32_t t, std::uint32_t from, std::uint32_t to,
              const std::int32_t* i) {
  std::int64_t sum = 0;
  for (std::uint32_t d = from; d < to; ++d) sum += std::int64_t{i[d]} * page.level(t, d);
  return static_cast<float>(sum);
}

void score_codes(const Page& page, const std::byte* prepared, std::uint32_t r, float* dots) {
  const EncodedPart& p = page.part;
  const std::uint32_t dim = p.rows.dim;
  std::int32_t i[kCodecDimMax];
  const auto row = prepared_row(p, prepared, r);
  for (std::uint32_t d = 0; d < dim; ++d)
    i[d] = p.terms == 2 ? 128 * row.bytes[d] + row.bytes[dim + d] : row.bytes[d];
  for (std::uint32_t t = 0; t < p.rows.tokens; ++t) {
    float s = 0;
    for (std::uint32_t d = 0, b = 0; d < dim; d += p.block, ++b) {
      const float sum = key_sum(page, t, d, std::min(d + p.block, dim), i);
      s = std::fma(std::fma(sum, row.unit[b], row.middle[b]), page.scale(d / p.group, t), s);
      if (page.has_offsets()) s = std::fma(row.sum[b], page.offset(d / p.group, t), s);
    }
    dots[t] = s;
  }
}

void score_channels(const Page& page, const float* q, float* dots) {
  const EncodedPart& p = page.part;
  float z[kCodecDimMax], offsets[kCodecDimMax];
  std::int32_t i[kCodecDimMax];
  for (std::uint32_t d = 0; d < p.rows.dim; ++d) {
    z[d] = q[d] * page.scale(d, 0);
    offsets[d] = page.offset(d, 0);
  }
  const float unit = to_integers(z, p.rows.dim, p.top, i) * p.step;
  const float base =
      std::fma(middle_of(p, i, p.rows.dim), unit, sum_products(q, offsets, p.rows.dim));
  for (std::uint32_t t = 0; t < p.rows.tokens; ++t)
    dots[t] = std::fma(key_sum(page, t, 0, p.rows.dim, i), unit, base);
}

void scores_of_unit(const EncodedPart& p, const EncodedUnit& unit, const std::byte* prepared,
                    std::uint32_t n, float* dots) {
  const std::uint32_t dim = p.rows.dim, tokens = p.rows.tokens;
  float decoded[kEncodedUnit * kCodecDimMax];
  for (std::uint32_t i = 0; i < unit.page_count; ++i) {
    const Page page{p, unit.pages[i]};
    if (p.kind == Kind::decoded) decode_page(p, page.bytes, unit.position + i * tokens, decoded);
    for (std::uint32_t r = 0; r < n; ++r) {
      const auto* q = reinterpret_cast<const float*>(prepared + r * p.prepared_bytes);
      float* out = dots + r * kEncodedUnit + i * tokens;
      if (p.kind == Kind::codes) {
        p.scales == Scales::page_pair ? score_channels(page, q, out)
                                      : score_codes(page, prepared, r, out);
        continue;
      }
      for (std::uint32_t t = 0; t < tokens; ++t) {
        float s = 0;
        for (std::uint32_t d = 0; d < dim; ++d)
          s = std::fma(q[d], p.kind == Kind::decoded ? decoded[d * tokens + t] : page.element(t, d),
                       s);
        out[t] = p.scales == Scales::none ? s : s * page.scale(0, t);
      }
    }
  }
}

void add_values(const EncodedPart& p, const EncodedUnit& unit, const float* weights,
                std::uint32_t n, const float* keep, const float* take, float* out) {
  const std::uint32_t dim = p.rows.dim, tokens = p.rows.tokens, slots = unit.page_count * tokens;
  const auto page_of = [&](std::uint32_t t) { return Page{p, unit.pages[t / tokens]}; };
  float decoded[kEncodedUnit * kCodecDimMax];
  if (p.kind == Kind::decoded)
    for (std::uint32_t i = 0; i < unit.page_count; ++i)
      decode_page(p, unit.pages[i], 0, decoded + i * tokens * dim);
  const auto scale_of = [&](std::uint32_t g, std::uint32_t t) {
    return page_of(t).size(g, t % tokens);
  };
  for (std::uint32_t r = 0; r < n; ++r) {
    const float* w = weights + r * kEncodedUnit;
    float* to = out + std::size_t{r} * dim;
    if (p.kind != Kind::codes) {
      for (std::uint32_t d = 0; d < dim; ++d) {
        float o = 0;
        for (std::uint32_t t = 0; t < slots; ++t)
          o = std::fma(
              w[t] * scale_of(0, t),
              p.kind == Kind::decoded ? decoded[t * dim + d] : page_of(t).element(t % tokens, d),
              o);
        to[d] = std::fma(o, take[r], to[d] * keep[r]);
      }
      continue;
    }
    float z[kEncodedUnit], offsets[kEncodedUnit];
    for (std::uint32_t t = 0; t < slots; ++t) {
      float scales[kCodecDimMax];
      for (std::uint32_t g = 0; g < encoded_groups(p); ++g) scales[g] = scale_of(g, t);
      z[t] = w[t] * largest(scales, static_cast<std::uint32_t>(encoded_groups(p)));
    }
    const Integer whole = integer_for(largest(z, slots), p.top);
    const float one = whole.scale * p.step;
    for (std::uint32_t g = 0; g < encoded_groups(p); ++g) {
      std::int32_t i[kEncodedUnit] = {};
      for (std::uint32_t t = 0; t < slots && whole.by != 0; ++t) {
        constexpr float kRound = 12582912.0f;  // 1.5 * 2^23
        i[t] =
            static_cast<std::int32_t>(std::fma(w[t] * whole.by, scale_of(g, t), kRound) - kRound);
      }
      float base = 0;
      if (p.scales == Scales::slot_pair) {
        for (std::uint32_t t = 0; t < slots; ++t) offsets[t] = page_of(t).offset(g, t % tokens);
        base = sum_products(w, offsets, slots);
      }
      base = std::fma(middle_of(p, i, slots), one, base) * take[r];
      for (std::uint32_t d = g * p.group; d < (g + 1) * p.group; ++d) {
        std::int64_t sum = 0;
        for (std::uint32_t t = 0; t < slots; ++t)
          sum += std::int64_t{i[t]} * page_of(t).level(t % tokens, d);
        to[d] = std::fma(static_cast<float>(sum), one * take[r], std::fma(to[d], keep[r], base));
      }
    }
  }
}

void finish_encoded(const EncodedPart& p, std::uint32_t n, float* out) {
  for (std::uint32_t r = 0; r < n; ++r)
    from_basis(p.codec->basis(Side::values), p.rows.dim, out + std::size_t{r} * p.rows.dim);
}

void turn(const EncodedPart& p, const std::byte* page, std::byte* keys) {
  const Codes from(page, Side::values, p.rows, p.bits);
  Codes to(keys, Side::keys, p.rows, p.bits);
  DCHECK(from.bytes() == to.bytes());
  std::memset(keys, 0, to.bytes());
  for (std::uint32_t slot = 0; slot < p.rows.tokens; ++slot)
    for (std::uint32_t d = 0; d < p.rows.dim; ++d) to.set(slot, d, from.get(slot, d));
  std::memcpy(keys + to.bytes(), page + from.bytes(), p.page_bytes - from.bytes());
}

}  // namespace

extern const EncodedKernels kEncodedScalar = {prepare,        scores_of_unit, add_values,
                                              finish_encoded, turn,           encode_page};

}  // namespace quire
