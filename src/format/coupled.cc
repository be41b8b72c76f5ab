#include "format/calibration.h"
#include "format/codes.h"

namespace quire {
namespace {

std::size_t row_bytes(const Calibration& c) { return (c.dim / c.channels * c.bits + 7) / 8; }

std::uint32_t nearest(const Calibration& c, const float* centroids, const float* x) {
  std::uint32_t best = 0;
  float least = INFINITY;
  for (std::uint32_t i = 0; i < 1u << c.bits; ++i) {
    float distance = 0;
    for (std::uint32_t j = 0; j < c.channels; ++j) {
      const float off = clean(x[j]) - centroids[i * c.channels + j];
      distance += off * off;
    }
    if (distance < least) least = distance, best = i;
  }
  return best;
}

}  // namespace

std::size_t cq_bytes(const Calibration& c, Rows rows) {
  return round_up_64(rows.tokens * row_bytes(c));
}

void cq_encode(const Calibration& c, const LaneCalibration& lane, Rows rows, const float* in,
               std::byte* page) {
  DCHECK(c.kind == CalibrationKind::coupled && rows.dim == c.dim);
  std::memset(page, 0, cq_bytes(c, rows));
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t g = 0; g < c.dim / c.channels; ++g) {
      const float* centroids = &lane.centroids[(std::size_t{g} << c.bits) * c.channels];
      put_bits(page + slot * row_bytes(c), std::size_t{g} * c.bits, c.bits,
               nearest(c, centroids, in + std::size_t{slot} * rows.dim + g * c.channels));
    }
}

void cq_decode(const Calibration& c, const LaneCalibration& lane, Rows rows, const std::byte* page,
               float* out) {
  DCHECK(c.kind == CalibrationKind::coupled && rows.dim == c.dim);
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot)
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      const std::uint32_t g = d / c.channels;
      const std::uint32_t code =
          take_bits(page + slot * row_bytes(c), std::size_t{g} * c.bits, c.bits);
      out[std::size_t{slot} * rows.dim + d] =
          lane.centroids[((std::size_t{g} << c.bits) + code) * c.channels + d % c.channels];
    }
}

}  // namespace quire
