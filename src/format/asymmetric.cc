// q5_1, q4_1: codes from the smallest to the largest of each group of 32.
//
//   x = code * step + least        step = (largest - least) / (2^bits - 1); 1 where all are equal
//
// Both are rounded to f16 before codes are made, the step upwards and least downwards, so that no
// element falls outside and every one is met to half a step. Scores are
// step * (query . codes) + least * (sum of the query): one sum per query and group.
//
//   codes   planes of c.bits
//   column  0: steps [groups][P] f16, then least [groups][P] f16, as one part
#include "format/codes.h"
#include "format/families.h"

namespace quire {
namespace {

std::uint32_t group_size(const Codec& c, Rows rows) { return c.group ? c.group : rows.dim; }

constexpr Codec asymmetric(std::string_view name, std::uint32_t bits) {
  return {.name = name,
          .bits = bits,
          .group = 32,
          .layout = asymmetric_layout,
          .encode = encode_asymmetric,
          .decode = decode_asymmetric};
}

}  // namespace

AsymmetricScale asymmetric_scale(const float* x, std::size_t stride, std::uint32_t n,
                                 std::uint32_t bits) {
  float least = clean(x[0]), largest = least;
  for (std::uint32_t i = 1; i < n; ++i) {
    least = std::min(least, clean(x[i * stride]));
    largest = std::max(largest, clean(x[i * stride]));
  }
  least += 0.0f;  // of two zeros the positive one, whichever came first
  std::uint16_t bottom = f32_to_f16(least);
  if (f16_to_f32(bottom) > least) bottom = f16_below(bottom);
  const float range = largest - f16_to_f32(bottom);
  const float step = range == 0 ? 1 : range / static_cast<float>((1u << bits) - 1);
  return {f16_up(step), bottom};
}

CodecLayout asymmetric_layout(const Codec& c, Side, Rows rows) {
  return {.code_bits = c.bits, .columns = {Column{2 * (rows.dim / group_size(c, rows)), 2}}};
}

void encode_asymmetric(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  const std::uint32_t n = group_size(c, rows), groups = rows.dim / n;
  const std::size_t scales = column_offset(c, side, rows, 0);
  Codes codes(page, side, rows, c.bits);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t g = 0; g < groups; ++g) {
      const float* x = in + std::size_t{slot} * rows.dim + g * n;
      const AsymmetricScale s = asymmetric_scale(x, 1, n, c.bits);
      put(page, scales, rows, g, slot, s.step);
      put(page, scales, rows, groups + g, slot, s.least);
      for (std::uint32_t i = 0; i < n; ++i) codes.set(slot, g * n + i, s.code(clean(x[i]), c.bits));
    }
}

void decode_asymmetric(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  const std::uint32_t n = group_size(c, rows), groups = rows.dim / n;
  const std::size_t scales = column_offset(c, side, rows, 0);
  const Codes codes(page, side, rows, c.bits);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      const AsymmetricScale s{take<std::uint16_t>(page, scales, rows, d / n, slot),
                              take<std::uint16_t>(page, scales, rows, groups + d / n, slot)};
      out[std::size_t{slot} * rows.dim + d] = s.value(codes.get(slot, d));
    }
}

extern const Codec kQ5_1 = asymmetric("q5_1", 5);
extern const Codec kQ4_1 = asymmetric("q4_1", 4);

}  // namespace quire
