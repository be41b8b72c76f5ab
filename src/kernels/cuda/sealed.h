// kernels/cuda/sealed.h - where the codes and scales of a sealed page lie on a GPU.
//
// kernels/cuda/attend_sealed.cu explains the order. A page is keys' codes, values' codes, keys'
// scales, values' scales (f16, one per slot). It is no larger than the format's page on a CPU
// (format/format.h).
// Codes and scales mean what the codec of the same name says (format/symmetric.cc, fp8.cc):
// kernels/cuda/pages.h copies pages from one order to the other. int4 and int2 are
// hadamard-int4-head and hadamard-int2-head.
#pragma once

#include "format/levels.h"
#include "kernels/cuda/api.h"

namespace quire {

// A scale is the largest magnitude over this; of int2, the root mean square over it.
QUIRE_HOST_DEVICE constexpr float sealed_code_max(CudaKvFormat format) {
  return format == CudaKvFormat::fp8    ? 448.0f
         : format == CudaKvFormat::int8 ? 127.0f
         : format == CudaKvFormat::int4 ? 8.0f
                                        : kGaussianStep;
}
// int4 and int2 codes are midpoints: no level is wasted on zero.
QUIRE_HOST_DEVICE constexpr float sealed_centre(CudaKvFormat format) {
  return format == CudaKvFormat::fp8    ? 0.0f
         : format == CudaKvFormat::int8 ? 128.0f
         : format == CudaKvFormat::int4 ? 7.5f
                                        : 1.5f;
}

QUIRE_HOST_DEVICE constexpr std::uint32_t sealed_bits(CudaKvFormat format) {
  return format == CudaKvFormat::int4 ? 4 : format == CudaKvFormat::int2 ? 2 : 8;
}

QUIRE_HOST_DEVICE constexpr std::uint32_t sealed_code_bytes(CudaKvFormat format,
                                                            std::uint32_t dim) {
  return kCudaPage * dim * sealed_bits(format) / 8;
}

QUIRE_HOST_DEVICE constexpr std::uint32_t sealed_page_bytes(CudaKvFormat format,
                                                            std::uint32_t dim) {
  return 2 * sealed_code_bytes(format, dim) + 2 * kCudaPage * 2;
}

// Side 0: keys, 1: values.
QUIRE_HOST_DEVICE constexpr std::uint32_t sealed_scale_at(CudaKvFormat format, std::uint32_t dim,
                                                          std::uint32_t side, std::uint32_t slot) {
  // Slots g, g + 8, g + 16 and g + 24 together.
  return 2 * sealed_code_bytes(format, dim) + (side * kCudaPage + slot % 8 * 4 + slot / 8) * 2;
}

struct SealedPlace {
  std::uint32_t byte, shift;  // shift: of a code smaller than its byte
};

QUIRE_HOST_DEVICE constexpr SealedPlace sealed_code_at(CudaKvFormat format, std::uint32_t dim,
                                                       std::uint32_t side, std::uint32_t slot,
                                                       std::uint32_t d) {
  const std::uint32_t bits = sealed_bits(format);
  if (side == 0 && bits == 8)
    return {slot * dim + ((d / 64) ^ (slot & (dim / 64 - 1))) * 64 + d % 64, 0};
  // A value's place among its dimension's 32: {2t, 2t+1, 2t+8, 2t+9} of each half for lane t.
  const std::uint32_t half = slot / 16, t = slot % 8 / 2, of_four = slot % 16 / 8 * 2 + slot % 2;
  const std::uint32_t second = d % 16 / 8, sixteens = 8 / bits;  // in 16 bytes of a lane
  const std::uint32_t values =
      kCudaPage * dim * bits / 8 + d / (16 * sixteens) * 512 + (d % 8 * 4 + t) * 16;
  if (bits == 8) return {values + second * 8 + half * 4 + of_four, 0};
  // Several codes in a word; pair p of them is at bits p * b and 16 + p * b.
  const std::uint32_t in_word = 32 / bits, of_sixteens = d / 16 % sixteens;
  const std::uint32_t word = side == 0   ? (slot * dim + d) / in_word * 4
                             : bits == 4 ? values + (2 * of_sixteens + second) * 4
                                         : values + of_sixteens * 4;
  const std::uint32_t pair = side == 0   ? d % in_word / 2
                             : bits == 4 ? half * 2 + of_four / 2
                                         : second * 4 + half * 2 + of_four / 2;
  const std::uint32_t bit = (side == 0 ? d : slot) % 2 * 16 + pair * bits;
  return {word + bit / 8, bit % 8};
}

}  // namespace quire
