#include <cmath>
#include <cstring>

#include "base/half.h"
#include "format/calibration.h"
#include "kernels/encoded.h"

namespace quire {
namespace {

constexpr std::uint32_t kPageTokensMax = kEncodedUnit;

}  // namespace

void turn_key(const RopeView& rope, std::uint32_t position, bool back, float* row) {
  const float *cosines = rope.cosines(position), *sines = rope.sines(position);
  float* const other = row + rope.half;
  for (std::uint32_t i = 0; i < rope.half; ++i) {
    const float a = row[i], b = other[i], sine = back ? -sines[i] : sines[i];
    row[i] = std::fma(a, cosines[i], -(b * sine));
    other[i] = std::fma(b, cosines[i], a * sine);
  }
}

void decode_page(const EncodedPart& p, const std::byte* page, std::uint32_t position, float* out) {
  const std::uint32_t tokens = p.rows.tokens, dim = p.rows.dim, layers = p.codec->layers;
  const bool keys = p.side == Side::keys;
  float rows[kPageTokensMax * kCodecDimMax];
  float* const to = keys || layers > 1 ? rows : out;
  if (p.calibration)
    decode_calibrated(*p.calibration, p.calibration->lanes[p.lane], p.side, p.rows, page, to);
  else
    p.codec->decode(*p.codec, p.side, {tokens, layers * dim}, page, to);
  if (to == out) return;
  for (std::uint32_t t = 0; t < tokens; ++t) {
    float* row = rows + (std::size_t{t} * layers + p.member) * dim;
    if (p.rope.chunks) turn_key(p.rope, position + t, false, row);
    for (std::uint32_t d = 0; d < dim; ++d)
      out[keys ? std::size_t{d} * tokens + t : std::size_t{t} * dim + d] = row[d];
  }
}

void encode_page(const EncodedPart& p, const std::byte* from, std::byte* page) {
  const std::uint32_t tokens = p.rows.tokens, dim = p.rows.dim, layers = p.codec->layers;
  const bool keys = p.side == Side::keys;
  float rows[kPageTokensMax * kCodecDimMax];
  for (std::uint32_t i = 0; i < tokens * layers; ++i) {
    const std::uint32_t t = i / layers;
    const std::byte* page_rows = from + i % layers * p.member_stride;
    float* row = rows + std::size_t{i} * dim;
    for (std::uint32_t d = 0; d < dim; ++d) {
      std::uint16_t h;
      std::memcpy(
          &h, page_rows + 2 * (keys ? std::size_t{d} * tokens + t : std::size_t{t} * dim + d), 2);
      row[d] = f16_to_f32(h);
    }
    if (keys && p.rope.chunks) turn_key(p.rope, p.position + t, true, row);
  }
  std::memset(page, 0, p.page_bytes);
  if (p.calibration)
    encode_calibrated(*p.calibration, p.calibration->lanes[p.lane], p.side, p.rows, rows, page);
  else
    p.codec->encode(*p.codec, p.side, {tokens, layers * dim}, rows, page);
}

}  // namespace quire
