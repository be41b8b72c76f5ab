// int8, q8_0, q4_0, int3, hadamard-int4/3/2, hadamard-int4/2-head: codes around a centre, one f16
// scale per group.
//
//   x = (code - centre) * scale
//
// int8      one group per row, scale max|x| / 127 (1e-6 at least), centre 128
// q8_0      the same in groups of 32
// q4_0      groups of 32, scale max / -8 where max is the element of largest magnitude with its
//           sign: that element is met exactly; centre 8
// hadamard  groups of 32 of H x, scale max|x| / m with m = 2^(bits - 1), centre m - 1/2: a midpoint
//           grid has no level at zero to waste and none missing at the top, 5-15 % less error than
//           rounding. Its largest level is below max|x|, so encoding twice shrinks a row.
// -head     the same with one scale per token and head, which a GPU reads faster. The scale of
//           hadamard-int2-head is the root mean square / 1.0043: the best even grid of four levels
//           for Gaussian numbers, which rows in the Hadamard basis nearly are.
//
//   codes   planes of c.bits
//   scales  [groups][P] f16
#include "format/codes.h"
#include "format/families.h"

namespace quire {
namespace {

std::uint32_t group_size(const Codec& c, Rows rows) { return c.group ? c.group : rows.dim; }

CodecLayout layout(const Codec& c, Side, Rows rows) {
  return {.code_bits = c.bits, .columns = {Column{rows.dim / group_size(c, rows), 2}}};
}

// What differs: the scale of a group, and the codes under it.
struct Rounded {  // int8, q8_0
  static constexpr float centre(std::uint32_t bits) { return static_cast<float>(1u << (bits - 1)); }
  static std::uint16_t scale(const float* x, std::uint32_t n, std::uint32_t bits) {
    return f16_up(std::max(max_magnitude(x, n) / (centre(bits) - 1), 1e-6f));
  }
  static std::uint32_t code(float steps, std::uint32_t bits) {
    const float top = centre(bits) - 1;  // +-127: the grid is symmetric, -128 is not used
    return static_cast<std::uint32_t>(std::clamp(std::nearbyint(steps), -top, top) + centre(bits));
  }
};

struct SignedMax {  // q4_0
  static constexpr float centre(std::uint32_t bits) { return static_cast<float>(1u << (bits - 1)); }
  static std::uint16_t scale(const float* x, std::uint32_t n, std::uint32_t bits) {
    float max = 0;  // of two with the same magnitude, the first
    for (std::uint32_t i = 0; i < n; ++i)
      if (std::fabs(x[i]) > std::fabs(max)) max = x[i];
    const std::uint16_t magnitude = f16_up(std::fabs(max) / centre(bits));
    return static_cast<std::uint16_t>(max > 0 ? magnitude | 0x8000 : magnitude);
  }
  static std::uint32_t code(float steps, std::uint32_t bits) {
    return round_code(steps + centre(bits), (1u << bits) - 1);
  }
};

struct Midpoint {  // hadamard-int
  static constexpr float half(std::uint32_t bits) { return static_cast<float>(1u << (bits - 1)); }
  static constexpr float centre(std::uint32_t bits) { return half(bits) - 0.5f; }
  static std::uint16_t scale(const float* x, std::uint32_t n, std::uint32_t bits) {
    return f16_up(max_magnitude(x, n) / half(bits));
  }
  static std::uint32_t code(float steps, std::uint32_t bits) {
    return static_cast<std::uint32_t>(
        std::clamp(std::floor(steps + half(bits)), 0.0f, 2 * half(bits) - 1));
  }
};

struct GaussianMidpoint : Midpoint {  // hadamard-int2-head
  static std::uint16_t scale(const float* x, std::uint32_t n, std::uint32_t) {
    return f16_up(root_mean_square(x, n) / kGaussianStep);
  }
};

template <class Grid>
void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  const std::uint32_t n = group_size(c, rows);
  const std::size_t scales = column_offset(c, side, rows, 0);
  Codes codes(page, side, rows, c.bits);
  float row[kCodecDimMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, c.basis(side), row);
    for (std::uint32_t g = 0; g < rows.dim / n; ++g) {
      const std::uint16_t scale = Grid::scale(row + g * n, n, c.bits);
      put(page, scales, rows, g, slot, scale);
      const float step = f16_to_f32(scale), inverse = step == 0 ? 0 : 1 / step;
      for (std::uint32_t d = g * n; d < (g + 1) * n; ++d)
        codes.set(slot, d, Grid::code(row[d] * inverse, c.bits));
    }
  }
}

template <class Grid>
void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  const std::uint32_t n = group_size(c, rows);
  const std::size_t scales = column_offset(c, side, rows, 0);
  const Codes codes(page, side, rows, c.bits);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t d = 0; d < rows.dim; ++d)
      out[std::size_t{slot} * rows.dim + d] =
          (static_cast<float>(codes.get(slot, d)) - Grid::centre(c.bits)) *
          f16_to_f32(take<std::uint16_t>(page, scales, rows, d / n, slot));
}

template <class Grid>
constexpr Codec symmetric(std::string_view name, std::uint32_t bits, std::uint32_t group,
                          Basis basis = Basis::plain, bool research = false) {
  return {.name = name,
          .research = research,
          .key_basis = basis,
          .value_basis = basis,
          .scale_is_mean = std::is_same_v<Grid, GaussianMidpoint>,
          .bits = bits,
          .group = group,
          .dim_multiple = group                   ? group
                          : basis == Basis::plain ? 16
                                                  : 32,
          .layout = layout,
          .encode = encode<Grid>,
          .decode = decode<Grid>};
}

}  // namespace

extern const Codec kInt8 = symmetric<Rounded>("int8", 8, 0);
extern const Codec kQ8_0 = symmetric<Rounded>("q8_0", 8, 32);
extern const Codec kQ4_0 = symmetric<SignedMax>("q4_0", 4, 32);
extern const Codec kHadamardInt4 = symmetric<Midpoint>("hadamard-int4", 4, 32, Basis::hadamard);
extern const Codec kHadamardInt3 = symmetric<Midpoint>("hadamard-int3", 3, 32, Basis::hadamard);
extern const Codec kInt3 = symmetric<Midpoint>("int3", 3, 32, Basis::plain, true);
extern const Codec kHadamardInt2 = symmetric<Midpoint>("hadamard-int2", 2, 32, Basis::hadamard);
extern const Codec kHadamardInt4Head =
    symmetric<Midpoint>("hadamard-int4-head", 4, 0, Basis::hadamard);
extern const Codec kHadamardInt2Head =
    symmetric<GaussianMidpoint>("hadamard-int2-head", 2, 0, Basis::hadamard);

}  // namespace quire
