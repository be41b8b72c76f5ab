// f32, f16, bf16: rows unchanged. Keys lie transposed, [dim][P], so that one vector holds the same
// dimension of consecutive tokens and scores need no horizontal sums; values lie [P][dim].
#include "format/codes.h"
#include "format/families.h"

namespace quire {
namespace {

CodecLayout layout(const Codec& c, Side side, Rows rows) {
  return {.columns = {elements(side, rows, c.bits / 8)}};
}

template <class T>
void encode_as(Side side, Rows rows, const float* in, std::byte* page, T (*narrow)(float)) {
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      const T value = narrow(in[std::size_t{slot} * rows.dim + d]);
      std::memcpy(page + element_index(side, rows, slot, d) * sizeof(T), &value, sizeof(T));
    }
}

template <class T>
void decode_as(Side side, Rows rows, const std::byte* page, float* out, float (*widen)(T)) {
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      T value;
      std::memcpy(&value, page + element_index(side, rows, slot, d) * sizeof(T), sizeof(T));
      out[std::size_t{slot} * rows.dim + d] = widen(value);
    }
}

float same(float x) { return x; }

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  switch (c.rows) {
    case RowType::f32:
      return encode_as<float>(side, rows, in, page, same);
    case RowType::f16:
      return encode_as<std::uint16_t>(side, rows, in, page, f32_to_f16);
    case RowType::bf16:
      return encode_as<std::uint16_t>(side, rows, in, page, f32_to_bf16);
  }
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  switch (c.rows) {
    case RowType::f32:
      return decode_as<float>(side, rows, page, out, same);
    case RowType::f16:
      return decode_as<std::uint16_t>(side, rows, page, out, f16_to_f32);
    case RowType::bf16:
      return decode_as<std::uint16_t>(side, rows, page, out, bf16_to_f32);
  }
}

constexpr Codec exact(std::string_view name, RowType rows, std::uint32_t bits) {
  return {.name = name,
          .rows = rows,
          .exact = true,
          .bits = bits,
          .dim_multiple = 1,
          .layout = layout,
          .encode = encode,
          .decode = decode};
}

}  // namespace

extern const Codec kF32 = exact("f32", RowType::f32, 32);
extern const Codec kF16 = exact("f16", RowType::f16, 16);
extern const Codec kBf16 = exact("bf16", RowType::bf16, 16);

}  // namespace quire
