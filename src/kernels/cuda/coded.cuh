// kernels/cuda/coded.cuh - one weight, or a few, of a matrix that lies as codes (coded.h).
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/coded.h"
#include "kernels/cuda/ptx.cuh"

namespace quire::cuda {

__device__ __forceinline__ float2 unpack_f16(std::uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}

// Scale and offset of the group that has input k.
template <int kBits, CodeForm kForm>
__device__ __forceinline__ float2 coded_pair(const void* data, std::uint32_t inputs,
                                             std::uint32_t output, std::uint32_t k) {
  const std::byte* at = static_cast<const std::byte*>(data) +
                        coded_pair_at({nullptr, kBits, kForm}, inputs, output, k);
  if constexpr (kForm == CodeForm::wide) return *reinterpret_cast<const float2*>(at);
  const std::uint32_t pair = *reinterpret_cast<const std::uint32_t*>(at);
  if constexpr (kForm == CodeForm::symmetric) {
    const float scale = low_bf16(pair) + high_bf16(pair);
    return make_float2(scale, -scale * (1 << (kBits - 1)));
  }
  const float2 halves = unpack_f16(pair);
  return make_float2(halves.x * (1 / coded_scale_factor(kBits, kForm)), halves.y);
}

// Weights k and k + 1, k being even, as bf16.
template <int kBits, CodeForm kForm>
__device__ __forceinline__ std::uint32_t coded_two(const void* data, std::uint32_t inputs,
                                                   std::uint32_t output, std::uint32_t k,
                                                   float2 pair) {
  const CodedPlace at = coded_at({nullptr, kBits, kForm}, inputs, output, k);
  const std::uint32_t codes =  // of a word, whose bytes 0 or 1, and 2 or 3, these are
      *reinterpret_cast<const std::uint32_t*>(static_cast<const std::byte*>(data) +
                                              (at.byte - k % 16 / 8)) >>
      (k % 16 / 8 * 8 + at.shift);
  constexpr std::uint32_t kMask = (1u << kBits) - 1;
  return pack_bf16(__fmaf_rn(pair.x, static_cast<float>(codes & kMask), pair.y),
                   __fmaf_rn(pair.x, static_cast<float>(codes >> 16 & kMask), pair.y));
}

// Calls `f` with bits and form as constants.
template <class F>
inline int by_coding(const WeightCodes& c, F f) {
  constexpr std::integral_constant<int, 4> kFour;
  constexpr std::integral_constant<int, 8> kEight;
  constexpr std::integral_constant<CodeForm, CodeForm::affine> kAffine;
  constexpr std::integral_constant<CodeForm, CodeForm::symmetric> kSymmetric;
  constexpr std::integral_constant<CodeForm, CodeForm::wide> kWide;
  if (c.bits == 4)
    return c.form == CodeForm::affine      ? f(kFour, kAffine)
           : c.form == CodeForm::symmetric ? f(kFour, kSymmetric)
                                           : f(kFour, kWide);
  if (c.bits != 8 || c.form == CodeForm::symmetric) return cudaErrorInvalidValue;
  return c.form == CodeForm::affine ? f(kEight, kAffine) : f(kEight, kWide);
}

}  // namespace quire::cuda
