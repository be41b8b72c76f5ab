// minicache: two neighbouring layers in one page. A row is [first layer's row, second layer's row].
// Stored are one direction, 0.6 of the way from the first row's direction to the second's (f16),
// and both lengths. One token in 16 is stored whole instead: those whose two directions differ most
// (ties go to the lower slot). Both layers of a token are at the same position, so RoPE has rotated
// them by the same angles.
//
//   column  0: directions [dim / 2][P] f16
//           1: lengths [2][P] f16
//           2: of the page: [P / 16] whole rows, each its slot (16 bits) and [dim] f16
#include "format/minicache.h"

#include <algorithm>
#include <cmath>

#include "format/families.h"

namespace quire {
namespace {

constexpr double kBetween = 0.6;
constexpr std::uint32_t kTokensMax = 128;

std::uint32_t kept_rows(Rows rows) { return (rows.tokens + 15) / 16; }
std::uint32_t kept_bytes(Rows rows) { return 2 + 2 * rows.dim; }

CodecLayout layout(const Codec&, Side, Rows rows) {
  return {.columns = {Column{rows.dim / 2, 2}, Column{2, 2},
                      Column{kept_rows(rows), kept_bytes(rows), false}}};
}

double length_of(const float* x, std::uint32_t n) {
  double sum = 0;
  for (std::uint32_t i = 0; i < n; ++i) sum += double{x[i]} * x[i];
  return std::sqrt(sum);
}

void encode(const Codec& c, Side side, Rows rows, const float* in, std::byte* page) {
  const std::size_t lengths = column_offset(c, side, rows, 1),
                    whole = column_offset(c, side, rows, 2);
  const std::uint32_t half = rows.dim / 2;
  float row[kCodecDimMax], e[kCodecDimMax];
  double angles[kTokensMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, Basis::plain, row);
    angles[slot] = shared_direction(row, row + half, half, kBetween, e);
    for (std::uint32_t d = 0; d < half; ++d) put(page, 0, rows, d, slot, f32_to_f16(e[d]));
    for (std::uint32_t i = 0; i < 2; ++i) {
      const double length = std::min(length_of(row + i * half, half), 65504.0);
      put(page, lengths, rows, i, slot, f32_to_f16(static_cast<float>(length)));
    }
  }
  for (std::uint32_t i = 0; i < kept_rows(rows); ++i) {
    const auto slot =
        static_cast<std::uint16_t>(std::max_element(angles, angles + rows.tokens) - angles);
    angles[slot] = -1;
    std::byte* to = page + whole + std::size_t{i} * kept_bytes(rows);
    std::memcpy(to, &slot, 2);
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, Basis::plain, row);
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      const std::uint16_t bits = f32_to_f16(row[d]);
      std::memcpy(to + 2 + 2 * d, &bits, 2);
    }
  }
}

void decode(const Codec& c, Side side, Rows rows, const std::byte* page, float* out) {
  const std::size_t lengths = column_offset(c, side, rows, 1),
                    whole = column_offset(c, side, rows, 2);
  const std::uint32_t half = rows.dim / 2;
  const auto number = [&](std::size_t at, std::uint32_t i, std::uint32_t slot) {
    return f16_to_f32(take<std::uint16_t>(page, at, rows, i, slot));
  };
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t d = 0; d < rows.dim; ++d)
      out[std::size_t{slot} * rows.dim + d] =
          number(lengths, d / half, slot) * number(0, d % half, slot);
  for (std::uint32_t i = 0; i < kept_rows(rows); ++i) {
    const std::byte* from = page + whole + std::size_t{i} * kept_bytes(rows);
    std::uint16_t slot, bits;
    std::memcpy(&slot, from, 2);
    float* row = out + std::size_t{slot % rows.tokens} * rows.dim;
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      std::memcpy(&bits, from + 2 + 2 * d, 2);
      row[d] = f16_to_f32(bits);
    }
  }
}

}  // namespace

double shared_direction(const float* a, const float* b, std::uint32_t dim, double t, float* e) {
  constexpr double kSineMin = 1e-4;
  const double length_a = length_of(a, dim), length_b = length_of(b, dim);
  const double by_a = length_a > 0 ? 1 / length_a : 0, by_b = length_b > 0 ? 1 / length_b : 0;
  double cosine = 0;
  for (std::uint32_t d = 0; d < dim; ++d) cosine += (a[d] * by_a) * (b[d] * by_b);
  const bool both = length_a > 0 && length_b > 0;
  const double angle = both ? std::acos(std::clamp(cosine, -1.0, 1.0)) : 0;
  const double sine = std::sin(angle);
  const double of_a = sine < kSineMin ? 1 - t : std::sin((1 - t) * angle) / sine;
  const double of_b = sine < kSineMin ? t : std::sin(t * angle) / sine;
  double square = 0;
  for (std::uint32_t d = 0; d < dim; ++d) {
    const double x = of_a * (a[d] * by_a) + of_b * (b[d] * by_b);
    square += x * x;
    e[d] = static_cast<float>(x);
  }
  const double by = square > 0 ? 1 / std::sqrt(square) : 0;
  for (std::uint32_t d = 0; d < dim; ++d) e[d] = static_cast<float>(e[d] * by);
  return angle;
}

extern const Codec kMinicache = {.name = "minicache",
                                 .research = true,
                                 .layers = 2,
                                 .layout = layout,
                                 .encode = encode,
                                 .decode = decode};

}  // namespace quire
