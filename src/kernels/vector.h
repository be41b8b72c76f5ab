// kernels/vector.h - the small operations between matrix products. Every instruction set gives the
// same bits.
//
// A sum has 16 partial sums (element i is added to sum i mod 16, in order), which are then added as
// a tree: 8 apart, 4, 2, 1. exp and tanh are one polynomial each, defined in kernels/ref/math.h.
// NaN never wins a maximum; any other operation on a NaN gives a NaN of any sign and payload.
//
//   const VectorKernels& vector = vector_kernels(best_isa());
//   vector.rms_norm(x, weight, 1e-5f, 576, normed);
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cpu.h"

namespace quire {

struct VectorKernels {
  // out[i] = x[i] * (1 / sqrt(mean(x^2) + epsilon)) * weight[i]; out may be x, here and below
  void (*rms_norm)(const float* x, const float* weight, float epsilon, std::uint32_t n, float* out);
  // out[i] = (x[i] - mean) * (1 / sqrt(mean((x - mean)^2) + epsilon)) * weight[i] + bias[i]; the last
  // two are one fma
  void (*layer_norm)(const float* x, const float* weight, const float* bias, float epsilon,
                     std::uint32_t n, float* out);
  // Rotates the pairs (x[i], x[i + dim/2]) by the angles whose cosines and sines are given, [dim/2]
  // each.
  void (*rope)(float* x, std::uint32_t dim, const float* cosines, const float* sines);
  void (*add)(float* x, const float* y, std::uint32_t n);                   // x += y
  void (*add_scaled)(float* x, const float* y, float by, std::uint32_t n);  // x = fma(y, by, x)
  void (*silu_mul)(const float* gate, const float* up, std::uint32_t n,
                   float* out);  // silu(gate) * up
  void (*gelu_mul)(const float* gate, const float* up, std::uint32_t n,
                   float* out);  // gelu_tanh(gate) * up
  // (u + 1) * g * sigmoid(kClampedSlope * g), with g = min(gate, limit) and u = up within +-limit
  void (*clamped_mul)(const float* gate, const float* up, float limit, std::uint32_t n, float* out);
  void (*gelu)(const float* x, std::uint32_t n, float* out);      // gelu_tanh
  void (*gelu_erf)(const float* x, std::uint32_t n, float* out);  // x * (1 + erf(x / sqrt(2))) / 2
  void (*scale)(float* x, float by, std::uint32_t n);
  void (*shifted)(const float* x, float less, float by, std::uint32_t n,
                  float* out);                               // (x - less) * by
  void (*softcap)(float* x, float cap, std::uint32_t n);     // cap * tanh(x / cap)
  float (*max)(const float* x, std::uint32_t n);             // never -0
  std::uint32_t (*argmax)(const float* x, std::uint32_t n);  // ties: the lowest
  // sum of exp(x[i] - max), in f32, in the order above
  float (*sum_exp)(const float* x, float max, std::uint32_t n);
  // The places of all x[i] >= floor, in order; returns their number, up to n
  std::uint32_t (*above)(const float* x, float floor, std::uint32_t n, std::uint32_t* out);
};

const VectorKernels& vector_kernels(Isa isa);

extern const VectorKernels kVectorScalar, kVectorAvx2, kVectorAvx512;  // by vector_kernels

}  // namespace quire
