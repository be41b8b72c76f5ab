// nvfp4: a 4-bit float (e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign) per element, an e4m3 scale per
// 16, and one power of two per (token, head) that brings the row's largest scale as near as
// possible to the top of e4m3. (The usual second scale is per tensor; a sealed block cannot know
// it.)
//
//   codes   planes of 4 bits, bit 3 the sign
//   column  0: scales [dim / 16][P], one byte each, e4m3
//           1: exponents [P], one byte each, an f32's exponent field
#include "format/families.h"
#include "format/fp8.h"

namespace quire {
namespace {

constexpr float kLevels[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
constexpr std::uint32_t kGroup = 16;

// Nearest level, ties to the even code.
std::uint32_t nearest(float x) {
  std::uint32_t code = 0;
  for (std::uint32_t i = 0; i + 1 < 8; ++i) {
    const float middle = 0.5f * (kLevels[i] + kLevels[i + 1]);
    code += i % 2 == 0 ? std::fabs(x) > middle : std::fabs(x) >= middle;
  }
  return code | (std::signbit(x) ? 8 : 0);
}

CodecLayout layout(const Codec&, Side, Rows rows) {
  return {.code_bits = 4, .columns = {Column{rows.dim / kGroup, 1}, Column{1, 1}}};
}

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  const std::size_t scales = column_offset(c, side, rows, 0);
  const std::size_t exponents = column_offset(c, side, rows, 1);
  Codes codes(page, side, rows, 4);
  float row[kCodecDimMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, Basis::plain, row);
    const std::uint8_t exponent =
        scale_exponent(max_magnitude(row, rows.dim) / kLevels[7], kE4m3Max);
    put(page, exponents, rows, 0, slot, exponent);
    const float whole = power_of_two(exponent);
    for (std::uint32_t g = 0; g < rows.dim / kGroup; ++g) {
      const std::uint8_t scale =
          f32_to_e4m3(max_magnitude(row + g * kGroup, kGroup) / kLevels[7] * (1 / whole));
      put(page, scales, rows, g, slot, scale);
      const float step = e4m3_to_f32(scale) * whole, inverse = step == 0 ? 0 : 1 / step;
      for (std::uint32_t d = g * kGroup; d < (g + 1) * kGroup; ++d)
        codes.set(slot, d, nearest(row[d] * inverse));
    }
  }
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  const std::size_t scales = column_offset(c, side, rows, 0);
  const std::size_t exponents = column_offset(c, side, rows, 1);
  const Codes codes(page, side, rows, 4);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    const float whole = power_of_two(take<std::uint8_t>(page, exponents, rows, 0, slot));
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      const std::uint32_t code = codes.get(slot, d);
      const float scale = e4m3_to_f32(take<std::uint8_t>(page, scales, rows, d / kGroup, slot));
      out[std::size_t{slot} * rows.dim + d] =
          static_cast<float>(kNvfp4Levels[code] - 12) * 0.5f * (scale * whole);
    }
  }
}

}  // namespace

extern const Codec kNvfp4 = {.name = "nvfp4",
                             .bits = 4,
                             .group = kGroup,
                             .layout = layout,
                             .encode = encode,
                             .decode = decode};

}  // namespace quire
