// turbo-4, turbo-3: the MSE form of TurboQuant. A key is rotated (H D), its coordinates divided by
// its norm are nearly N(0, 1/dim) whatever the key was, and each is stored as the nearest level of
// the Lloyd-Max quantizer for a Gaussian; the levels are rounded to multiples of 1/127 of the
// largest, so that products with them are integers (0.4 % more error). Values are asymmetric per
// (token, head).
//
// Decoded, the levels' vector is brought to the key's own norm ("norm correction"). That norm is
// known when encoding, so the stored scale is already |key| / |levels|: one product per key at
// read.
//
//   keys    planes of c.bits, 0 the most negative level; scales [1][P] f16
//   values  planes of c.bits; steps, then least, [1][P] f16 each
#include "format/families.h"

namespace quire {
namespace {

float level(std::uint32_t bits, std::uint32_t code) {
  return bits == 3 ? static_cast<float>(kTurboLevels3[code] - 128) * kTurboUnit3
                   : static_cast<float>(kTurboLevels4[code] - 128) * kTurboUnit4;
}

// Nearest level; halfway goes up.
std::uint32_t nearest(std::uint32_t bits, float x) {
  std::uint32_t code = 0;
  for (std::uint32_t i = 0; i + 1 < 1u << bits; ++i)
    code += x >= 0.5f * (level(bits, i) + level(bits, i + 1));
  return code;
}

CodecLayout layout(const Codec& c, Side side, Rows rows) {
  if (side == Side::values) return asymmetric_layout(c, side, rows);
  return {.code_bits = c.bits, .columns = {Column{1, 2}}};
}

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  if (side == Side::values) return encode_asymmetric(c, side, rows, in, page);
  const std::size_t scales = column_offset(c, side, rows, 0);
  Codes codes(page, side, rows, c.bits);
  float row[kCodecDimMax], levels[kCodecDimMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, c.key_basis, row);
    const float norm = std::sqrt(sum_squares(row, rows.dim));
    const float unit = norm == 0 ? 0 : std::sqrt(static_cast<float>(rows.dim)) / norm;
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      const std::uint32_t code = nearest(c.bits, row[d] * unit);
      codes.set(slot, d, code);
      levels[d] = level(c.bits, code);
    }
    const float scale = norm / std::sqrt(sum_squares(levels, rows.dim));
    put(page, scales, rows, 0, slot, f32_to_f16(std::min(scale, 65504.0f)));
  }
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  if (side == Side::values) return decode_asymmetric(c, side, rows, page, out);
  const std::size_t scales = column_offset(c, side, rows, 0);
  const Codes codes(page, side, rows, c.bits);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    const float scale = f16_to_f32(take<std::uint16_t>(page, scales, rows, 0, slot));
    for (std::uint32_t d = 0; d < rows.dim; ++d)
      out[std::size_t{slot} * rows.dim + d] = level(c.bits, codes.get(slot, d)) * scale;
  }
}

constexpr Codec turbo(std::string_view name, std::uint32_t bits) {
  return {.name = name,
          .key_basis = Basis::signed_hadamard,
          .bits = bits,
          .dim_power_of_two = true,
          .layout = layout,
          .encode = encode,
          .decode = decode};
}

}  // namespace

extern const Codec kTurbo4 = turbo("turbo-4", 4);
extern const Codec kTurbo3 = turbo("turbo-3", 3);

}  // namespace quire
