// fp8-e4m3, fp8-e5m2: an 8-bit float per element under one power of two per (token, head).
//
// The scale is the smallest power of two from 2^-24 on (f16 holds it) with which the row's largest
// magnitude fits. Dividing by a
// power of two is exact; the precision of a float is relative, so a finer scale would gain nothing
// and add a rounding. The scale is per token: a page-wide one would make every slot's bytes depend
// on its neighbours (class B: no compaction) and would take the same 64 bytes. It depends on the
// row alone, so that sealing is a pure function of the rows.
//
//   elements  keys [dim][P], values [P][dim], one byte each: the shape of the exact formats
//   exponents [P], one byte each, an f32's exponent field
#include "format/fp8.h"

#include "format/codes.h"
#include "format/families.h"

namespace quire {
namespace {

CodecLayout layout(const Codec&, Side side, Rows rows) {
  return {.columns = {elements(side, rows, 1), Column{1, 1}}};
}

template <std::uint8_t (*kNarrow)(float), std::uint32_t kMax>
void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  const std::size_t exponents = column_offset(c, side, rows, 1);
  float row[kCodecDimMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, Basis::plain, row);
    const float largest = std::max(max_magnitude(row, rows.dim), kFp8LeastScale * kMax);
    const std::uint8_t exponent = scale_exponent(largest, kMax);
    put(page, exponents, rows, 0, slot, exponent);
    const float inverse = 1 / power_of_two(exponent);
    for (std::uint32_t d = 0; d < rows.dim; ++d)
      page[element_index(side, rows, slot, d)] = std::byte(kNarrow(row[d] * inverse));
  }
}

template <float (*kWiden)(std::uint8_t)>
void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  const std::size_t exponents = column_offset(c, side, rows, 1);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    const float scale = power_of_two(take<std::uint8_t>(page, exponents, rows, 0, slot));
    for (std::uint32_t d = 0; d < rows.dim; ++d)
      out[std::size_t{slot} * rows.dim + d] =
          kWiden(std::to_integer<std::uint8_t>(page[element_index(side, rows, slot, d)])) * scale;
  }
}

}  // namespace

extern const Codec kFp8E4m3 = {.name = "fp8-e4m3",
                               .bits = 8,
                               .dim_multiple = 1,
                               .layout = layout,
                               .encode = encode<f32_to_e4m3, 448>,
                               .decode = decode<e4m3_to_f32>};
extern const Codec kFp8E5m2 = {.name = "fp8-e5m2",
                               .bits = 8,
                               .dim_multiple = 1,
                               .layout = layout,
                               .encode = encode<f32_to_e5m2, 57344>,
                               .decode = decode<e5m2_to_f32>};

}  // namespace quire
