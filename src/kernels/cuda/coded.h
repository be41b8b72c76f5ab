// kernels/cuda/coded.h - where weights of 4 or 8 bits lie on a GPU.
//
// A weight is scale * code + offset, fused, then rounded to bf16. For the GGUF types that
// model/weight_codes.h accepts, this is exactly their meaning, so a product has the same bits as
// with weights of bf16. A matrix is stored in units of 16 outputs by 128 inputs; all units of 16
// outputs follow each other. A unit is the codes in the order of the tensor cores' fragments, then
// a pair of numbers for each of [16 outputs][4 groups of 32 inputs] that says what the codes mean
// (CodeForm).
//
//   const CodedPlace at = coded_at(codes, inputs, output, k);
//   code = bytes[at.byte] >> at.shift & mask;
#pragma once

#include "kernels/cuda/api.h"

namespace quire {

inline constexpr std::uint32_t kCodedOutputs = 16, kCodedInputs = 128, kCodedGroup = 32;

QUIRE_HOST_DEVICE constexpr std::uint32_t coded_pair_bytes(CodeForm form) {
  return form == CodeForm::wide ? 8 : 4;
}
QUIRE_HOST_DEVICE constexpr std::uint32_t coded_unit_codes(std::uint32_t bits) {  // bytes
  return kCodedOutputs * kCodedInputs * bits / 8;
}
QUIRE_HOST_DEVICE constexpr std::uint32_t coded_unit_bytes(std::uint32_t bits, CodeForm form) {
  return coded_unit_codes(bits) +
         kCodedOutputs * (kCodedInputs / kCodedGroup) * coded_pair_bytes(form);
}
// Affine scales of 4 bits are stored times this, and are less than kCodedScaleMax: the kernel puts
// codes into mantissas of subnormal f32, and makes good for that.
QUIRE_HOST_DEVICE constexpr float coded_scale_factor(std::uint32_t bits, CodeForm form) {
  return bits == 4 && form == CodeForm::affine ? 8.0f : 1.0f;
}
inline constexpr float kCodedScaleMax = 0.25f;
QUIRE_HOST_DEVICE constexpr std::uint32_t coded_units(std::uint32_t inputs) {  // of 16 outputs
  return (inputs + kCodedInputs - 1) / kCodedInputs;
}
QUIRE_HOST_DEVICE constexpr std::size_t coded_unit_at(WeightCodes c, std::uint32_t inputs,
                                                      std::uint32_t output, std::uint32_t k) {
  return (std::size_t{output / kCodedOutputs} * coded_units(inputs) + k / kCodedInputs) *
         coded_unit_bytes(c.bits, c.form);
}
// `outputs` is a multiple of kCodedOutputs.
QUIRE_HOST_DEVICE constexpr std::size_t coded_bytes(WeightCodes c, std::uint32_t outputs,
                                                    std::uint32_t inputs) {
  return coded_unit_at(c, inputs, outputs, 0);
}

struct CodedPlace {
  std::size_t byte;
  std::uint32_t shift;
};
// Lane g * 4 + t has, for each 16 inputs, those 2t, 2t + 1, 2t + 8 and 2t + 9 of outputs g and g + 8.
// It reads 16 bytes at a time: 64 inputs of 4 bits, where a word holds output g in the lower halves of
// its bytes and g + 8 in the upper ones, or 32 of 8, in a word for each. Bytes are in the order 2t,
// 2t + 8, 2t + 1, 2t + 9: neighbours are 16 bits apart.
QUIRE_HOST_DEVICE constexpr CodedPlace coded_at(WeightCodes c, std::uint32_t inputs,
                                                std::uint32_t output, std::uint32_t k) {
  const std::uint32_t lane = output % 8 * 4 + k % 8 / 2, of_four = k % 2 * 2 + k % 16 / 8;
  const std::uint32_t at_once = 256 / c.bits, step = k % at_once / 16, second = output % 16 / 8;
  return {coded_unit_at(c, inputs, output, k) + k % kCodedInputs / at_once * 512 + lane * 16 +
              (c.bits == 4 ? step : 2 * step + second) * 4 + of_four,
          c.bits == 4 ? 4 * second : 0};
}
// Of the pair that this weight shares with its group.
QUIRE_HOST_DEVICE constexpr std::size_t coded_pair_at(WeightCodes c, std::uint32_t inputs,
                                                      std::uint32_t output, std::uint32_t k) {
  return coded_unit_at(c, inputs, output, k) + coded_unit_codes(c.bits) +
         (output % kCodedOutputs * (kCodedInputs / kCodedGroup) + k % kCodedInputs / kCodedGroup) *
             coded_pair_bytes(c.form);
}

}  // namespace quire
