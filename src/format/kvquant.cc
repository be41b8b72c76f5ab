#include "base/check.h"
#include "format/calibration.h"
#include "format/codes.h"

namespace quire {
namespace {

constexpr std::uint16_t kNone = 0xffff;

struct Sparse {
  std::uint16_t channel, value;
};

std::size_t sparse_offset(const Calibration& c, Side side, Rows rows) {
  return Codes(nullptr, side, rows, c.bits).bytes();
}

std::size_t scales_offset(const Calibration& c, Side side, Rows rows) {
  return sparse_offset(c, side, rows) +
         round_up_64(std::size_t{rows.tokens} * kvquant_sparse_max(rows.dim) * sizeof(Sparse));
}

std::uint32_t nearest(const std::vector<float>& levels, float x) {
  std::uint32_t code = 0;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i)
    code += x >= 0.5f * (levels[i] + levels[i + 1]);
  return code;
}

// The middle and half width of the elements that are not set aside.
struct RowScale {
  std::uint16_t zero, range;
};

RowScale row_scale(const float* row, const bool* aside, std::uint32_t dim) {
  float least = INFINITY, largest = -INFINITY;
  for (std::uint32_t d = 0; d < dim; ++d)
    if (!aside[d]) least = std::min(least, row[d]), largest = std::max(largest, row[d]);
  const std::uint16_t zero = f32_to_f16(0.5f * least + 0.5f * largest);
  const float middle = f16_to_f32(zero);
  return {zero, f16_up(std::max(largest - middle, middle - least))};
}

// Marks the sparse elements: of values, the farthest from the row's mean; of keys, those farthest
// outside [-1, 1]. Of equals, the lower channel.
void set_aside(const float* weight, float threshold, std::uint32_t dim, bool* aside) {
  for (std::uint32_t n = 0; n < kvquant_sparse_max(dim); ++n) {
    std::uint32_t best = dim;
    float most = threshold;
    for (std::uint32_t d = 0; d < dim; ++d)
      if (!aside[d] && weight[d] > most) most = weight[d], best = d;
    if (best == dim) return;
    aside[best] = true;
  }
}

}  // namespace

std::uint32_t kvquant_sparse_max(std::uint32_t dim) { return std::max(dim / 100, 1u); }

std::size_t kvquant_bytes(const Calibration& c, Side side, Rows rows) {
  return scales_offset(c, side, rows) +
         (side == Side::values ? round_up_64(std::size_t{rows.tokens} * sizeof(RowScale)) : 0);
}

void kvquant_encode(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                    const float* in, std::byte* page) {
  DCHECK(c.kind == CalibrationKind::kvquant && rows.dim == c.dim);
  std::memset(page, 0, kvquant_bytes(c, side, rows));
  const std::uint32_t sparse_max = kvquant_sparse_max(rows.dim);
  Codes codes(page, side, rows, c.bits);
  float row[kCodecDimMax], weight[kCodecDimMax];
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    load_row(in + std::size_t{slot} * rows.dim, rows.dim, Basis::plain, row);
    bool aside[kCodecDimMax] = {};
    RowScale scale{};
    if (side == Side::keys) {
      for (std::uint32_t d = 0; d < rows.dim; ++d)
        weight[d] = std::fabs((row[d] - lane.zero[d]) * (1 / lane.range[d]));
      set_aside(weight, 1, rows.dim, aside);
    } else {
      // From the mean, not the middle: one outlier moves the middle halfway to itself.
      const float mean = sum_by_16(row, rows.dim) / static_cast<float>(rows.dim);
      for (std::uint32_t d = 0; d < rows.dim; ++d) weight[d] = std::fabs(row[d] - mean);
      set_aside(weight, 0, rows.dim, aside);
      scale = row_scale(row, aside, rows.dim);
      const std::size_t at = scales_offset(c, side, rows);
      put(page, at, rows, 0, slot, scale.zero);
      put(page, at, rows, 1, slot, scale.range);
    }
    const float own_range = f16_to_f32(scale.range);
    std::uint32_t kept = 0;
    for (std::uint32_t d = 0; d < rows.dim; ++d) {
      const float zero = side == Side::keys ? lane.zero[d] : f16_to_f32(scale.zero);
      const float range = side == Side::keys ? lane.range[d] : own_range;
      codes.set(slot, d, nearest(lane.levels, range == 0 ? 0 : (row[d] - zero) * (1 / range)));
      if (aside[d]) {
        const Sparse s{static_cast<std::uint16_t>(d), f32_to_f16(row[d])};
        std::memcpy(page + sparse_offset(c, side, rows) +
                        (std::size_t{slot} * sparse_max + kept++) * sizeof s,
                    &s, sizeof s);
      }
    }
    for (const Sparse none{kNone, 0}; kept < sparse_max; ++kept)
      std::memcpy(page + sparse_offset(c, side, rows) +
                      (std::size_t{slot} * sparse_max + kept) * sizeof none,
                  &none, sizeof none);
  }
}

void kvquant_decode(const Calibration& c, const LaneCalibration& lane, Side side, Rows rows,
                    const std::byte* page, float* out) {
  DCHECK(c.kind == CalibrationKind::kvquant && rows.dim == c.dim);
  const std::uint32_t sparse_max = kvquant_sparse_max(rows.dim);
  const std::size_t scales = scales_offset(c, side, rows);
  const Codes codes(page, side, rows, c.bits);
  std::uint8_t code[64 * kCodecDimMax];
  CHECK(rows.tokens <= 64);
  codes.unpack(code);
  const float* const levels = lane.levels.data();
  for (std::uint32_t slot = 0; slot < rows.tokens; ++slot) {
    float* row = out + std::size_t{slot} * rows.dim;
    if (side == Side::keys) {
      for (std::uint32_t d = 0; d < rows.dim; ++d)
        row[d] = levels[code[codes.index(slot, d)]] * lane.range[d] + lane.zero[d];
    } else {
      const float range = f16_to_f32(take<std::uint16_t>(page, scales, rows, 1, slot)),
                  zero = f16_to_f32(take<std::uint16_t>(page, scales, rows, 0, slot));
      for (std::uint32_t d = 0; d < rows.dim; ++d)
        row[d] = levels[code[codes.index(slot, d)]] * range + zero;
    }
    for (std::uint32_t i = 0; i < sparse_max; ++i) {
      Sparse s;
      std::memcpy(
          &s, page + sparse_offset(c, side, rows) + (std::size_t{slot} * sparse_max + i) * sizeof s,
          sizeof s);
      if (s.channel < rows.dim) row[s.channel] = f16_to_f32(s.value);
    }
  }
}

}  // namespace quire
