#include "kernels/vector.h"

#include <cmath>
#include <limits>

#include "kernels/gate_terms.h"
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

void layer_norm(const float* x, const float* weight, const float* bias, float epsilon,
                std::uint32_t n, float* out) {
  float sums[16] = {}, squares[16] = {};
  for (std::uint32_t i = 0; i < n; ++i) sums[i % 16] += x[i];
  const float mean = ref::add_tree(sums) / static_cast<float>(n);
  for (std::uint32_t i = 0; i < n; ++i)
    squares[i % 16] = std::fma(x[i] - mean, x[i] - mean, squares[i % 16]);
  const float variance = ref::add_tree(squares) / static_cast<float>(n);
  const float by = 1.0f / std::sqrt(variance + epsilon);
  for (std::uint32_t i = 0; i < n; ++i) out[i] = std::fma((x[i] - mean) * by, weight[i], bias[i]);
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

void add_scaled(float* x, const float* y, float by, std::uint32_t n) {
  for (std::uint32_t i = 0; i < n; ++i) x[i] = std::fma(y[i], by, x[i]);
}

void silu_mul(const float* gate, const float* up, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = ref::times_sigmoid(gate[i], gate[i]) * up[i];
}

float gelu_of(float x) {
  const float u = x * std::fma(x * x, kGelu3, kGelu1);
  return ref::times_sigmoid(x, 2.0f * u);
}

void gelu_mul(const float* gate, const float* up, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = gelu_of(gate[i]) * up[i];
}

void clamped_mul(const float* gate, const float* up, float limit, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const float g = gate[i] > limit ? limit : gate[i];
    const float most = up[i] > limit ? limit : up[i], u = most < -limit ? -limit : most;
    out[i] = (u + 1.0f) * ref::times_sigmoid(g, kClampedSlope * g);
  }
}

void gelu(const float* x, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) out[i] = gelu_of(x[i]);
}

void gelu_erf(const float* x, std::uint32_t n, float* out) {
  for (std::uint32_t i = 0; i < n; ++i) {
    const float z = x[i] * kSqrtHalf, t = 1.0f / std::fma(kErfP, std::fabs(z), 1.0f);
    float p = std::fma(kErf5, t, kErf4);
    p = std::fma(p, t, kErf3);
    p = std::fma(p, t, kErf2);
    p = std::fma(p, t, kErf1);
    const float tail = p * t * ref::exp(-(z * z));  // 1 - erf(|z|)
    out[i] = 0.5f * x[i] * (x[i] < 0 ? tail : 2.0f - tail);
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

extern const VectorKernels kVectorScalar = {
    rms_norm, layer_norm, rope,    add,     add_scaled, silu_mul, gelu_mul, clamped_mul, gelu,
    gelu_erf, scale,      shifted, softcap, max,        argmax,   sum_exp,  above};

}  // namespace quire
