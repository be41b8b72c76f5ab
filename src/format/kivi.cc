// kivi-4, kivi-2: keys per channel over the page's P tokens, values per token in groups of 32
// channels; both asymmetric (asymmetric.cc has the grid). Key channels differ far more from each
// other than tokens do within one. Keys are class B: their scales come from all P tokens, so slots
// cannot be moved. The storage policy decides which tokens stay exact (sinks, recent ones).
//
//   keys    planes of c.bits; steps [dim], then least [dim], f16, for the page. A query is
//           multiplied by the steps once per page, and its product with `least` added.
//   values  planes of c.bits; steps, then least, [groups][P] f16
#include "format/families.h"

namespace quire {
namespace {

CodecLayout layout(const Codec& c, Side side, Rows rows) {
  if (side == Side::values) return asymmetric_layout(c, side, rows);
  return {.code_bits = c.bits, .columns = {Column{2 * rows.dim, 2, false}}};
}

constexpr Rows kPage{1, 0};  // a column with one number per index, whatever the slot

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  if (side == Side::values) return encode_asymmetric(c, side, rows, in, page);
  const std::size_t scales = column_offset(c, side, rows, 0);
  Codes codes(page, side, rows, c.bits);
  for (std::uint32_t d = 0; d < rows.dim; ++d) {
    const AsymmetricScale s = asymmetric_scale(in + d, rows.dim, rows.tokens, c.bits);
    put(page, scales, kPage, d, 0, s.step);
    put(page, scales, kPage, rows.dim + d, 0, s.least);
    for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
      codes.set(slot, d, s.code(clean(in[std::size_t{slot} * rows.dim + d]), c.bits));
  }
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  if (side == Side::values) return decode_asymmetric(c, side, rows, page, out);
  const std::size_t scales = column_offset(c, side, rows, 0);
  const Codes codes(page, side, rows, c.bits);
  for (std::uint32_t d = 0; d < rows.dim; ++d) {
    const AsymmetricScale s{take<std::uint16_t>(page, scales, kPage, d, 0),
                            take<std::uint16_t>(page, scales, kPage, rows.dim + d, 0)};
    for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
      out[std::size_t{slot} * rows.dim + d] = s.value(codes.get(slot, d));
  }
}

constexpr Codec kivi(std::string_view name, std::uint32_t bits) {
  return {.name = name,
          .bits = bits,
          .group = 32,
          .layout = layout,
          .encode = encode,
          .decode = decode};
}

}  // namespace

extern const Codec kKivi4 = kivi("kivi-4", 4);
extern const Codec kKivi2 = kivi("kivi-2", 2);

}  // namespace quire
