#include "kernels/vector.h"

#include <cmath>
#include <limits>

#include "kernels/ref/math.h"

namespace quire {
namespace {

void rms_norm(const float* x, const float* weight, float epsilon, std::uint32_t n, float* out) {
  float sums[16] = {};
  for (std::uint32_t i = 0; i < n; ++i) sums[i % 16] = std::fma(x[i], x[i], sums[i % 16]);
  const float mean = ref::add_tree(sums) / static_cast<float>(n);
  const float by = 1.0f / std::sqrt(mean + epsilon);
  for (std::uint32_t i = 0; i < n; ++i) out[i] = x[i] * by * weight[i];
}

void rope(float* x, std::uint32_t dim, const float* cosines, const float* sines) {
  float* y = x + dim / 2;
  for (std::uint32_t i = 0; i < dim / 2; ++i) {
    const float a = x[i], b = y[i];
    x[i] = std::fma(a, cosines[i], -(b * sines[i]));
    y[i] = std::fma(b, cosines[i], a * sines[i]);
  }
}

void add(float* x, const float* y, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) x[i] += y[i];
}

void silu_mul(const float* gate, const float* up, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = ref::times_sigmoid(gate[i], gate[i]) * up[i];
}

void gelu_mul(const float* gate, const float* up, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const float x = gate[i];
    const float u = x * std::fma(x * x, kGelu3, kGelu1);
    out[i] = ref::times_sigmoid(x, 2.0f * u) * up[i];
  }
}

void scale(float* x, float by, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) x[i] *= by;
}

void shifted(const float* x, float less, float by, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = (x[i] - less) * by;
}

void softcap(float* x, float cap, std::uint32_t n) {
  const float inverse = 1.0f / cap;
  for (std::uint32_t i = 0; i < n; ++i) x[i] = cap * ref::tanh(x[i] * inverse);
}

float max(const float* x, std::uint32_t n) {
  float most = -std::numeric_limits<float>::infinity();
  for (std::uint32_t i = 0; i < n; ++i)
    if (x[i] > most) most = x[i];
  return most + 0.0f;
}

std::uint32_t argmax(const float* x, std::uint32_t n) {
  float most = -std::numeric_limits<float>::infinity();
  std::uint32_t at = 0;
  for (std::uint32_t i = 0; i < n; ++i)
    if (x[i] > most) most = x[i], at = i;
  return at;
}

float sum_exp(const float* x, float max_value, std::uint32_t n) {
  float sums[16] = {};
  for (std::uint32_t i = 0; i < n; ++i) sums[i % 16] += ref::exp(x[i] - max_value);
  return ref::add_tree(sums);
}

std::uint32_t above(const float* x, float floor, std::uint32_t n, std::uint32_t* out) {
  std::uint32_t found = 0;
  for (std::uint32_t i = 0; i < n; ++i)
    if (x[i] >= floor) out[found++] = i;
  return found;
}

}  // namespace

extern const VectorKernels kVectorScalar = {rms_norm, rope,    add, silu_mul, gelu_mul, scale,
                                            shifted,  softcap, max, argmax,   sum_exp,  above};

}  // namespace quire
