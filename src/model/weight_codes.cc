#include "model/weight_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "tensor/dequantize.h"

namespace quire {

WeightCodes code_kind(std::span<const DType> types) {
  WeightCodes kind;
  bool symmetric = true, wide = false;
  for (const DType type : types) {
    const std::uint32_t bits = affine_bits(type);
    if (bits == 0) return {};
    kind.bits = std::max(kind.bits, bits <= 4 ? 4u : 8u);
    symmetric = symmetric && type == DType::q4_0;
    // Scales that are products of two, or whose exponents are no f16's; offsets that are products.
    wide = wide || type == DType::q4_k || type == DType::q5_k || type == DType::iq4_xs ||
           type == DType::mxfp4 || type == DType::u4 || type == DType::u4_bf16;
  }
  kind.form = wide                          ? CodeForm::wide
              : symmetric && kind.bits == 4 ? CodeForm::symmetric
                                            : CodeForm::affine;
  return kind;
}

WeightCoder::WeightCoder(WeightCodes kind, std::uint32_t outputs, std::uint32_t inputs)
    : kind_(kind), inputs_(inputs), bytes_(coded_bytes(kind, outputs, inputs)) {}

bool WeightCoder::put_pair(float scale, float offset, std::byte* to) const {
  if (!std::isfinite(scale) || !std::isfinite(offset)) return false;
  if (kind_.form == CodeForm::wide) {
    const float pair[] = {scale, offset};
    std::memcpy(to, pair, sizeof pair);
    return true;
  }
  std::uint16_t pair[2];
  if (kind_.form == CodeForm::symmetric) {
    pair[0] = f32_to_bf16(scale);
    pair[1] = f32_to_bf16(scale - bf16_to_f32(pair[0]));
    if (bf16_to_f32(pair[0]) + bf16_to_f32(pair[1]) != scale || offset != -8 * scale) return false;
  } else {
    const float factor = coded_scale_factor(kind_.bits, kind_.form);
    pair[0] = f32_to_f16(factor * scale);
    pair[1] = f32_to_f16(offset);
    if (f16_to_f32(pair[0]) != factor * scale || f16_to_f32(pair[1]) != offset ||
        (factor != 1 && std::fabs(scale) >= kCodedScaleMax))
      return false;
  }
  std::memcpy(to, pair, sizeof pair);
  return true;
}

bool WeightCoder::add(std::uint32_t output, DType type, const std::byte* row) {
  for (std::uint32_t k = 0; k < inputs_; k += kCodedGroup) {
    const AffineGroup group = affine_group(type, row, k / kCodedGroup);
    if (!put_pair(group.scale, group.offset, &bytes_[coded_pair_at(kind_, inputs_, output, k)]))
      return false;
    for (std::uint32_t i = 0; i < kCodedGroup; ++i) {
      const CodedPlace at = coded_at(kind_, inputs_, output, k + i);
      bytes_[at.byte] |= std::byte{group.codes[i]} << at.shift;
    }
  }
  return true;
}

}  // namespace quire
