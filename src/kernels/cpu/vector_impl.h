// kernels/cpu/vector_impl.h - the vector kernels in terms of floats.h; vector_avx2.cc and
// vector_avx512.cc are this file.
#pragma once

#include "kernels/cpu/floats.h"
#include "kernels/gate_terms.h"
#include "kernels/vector.h"

namespace quire {
namespace {

// Calls f(i, 16) for each whole group of 16 elements and f(i, rest) for what is left.
template <class F>
QUIRE_INLINE void each_16(std::uint32_t n, F f) {
  std::uint32_t i = 0;
  for (; i + 16 <= n; i += 16) f(i, std::uint32_t{16});
  if (i < n) f(i, n - i);
}

QUIRE_INLINE Floats load_some(const float* p, std::uint32_t n) {
  return n == 16 ? load(p) : load_first(p, n);
}

QUIRE_INLINE void store_some(float* p, Floats x, std::uint32_t n) {
  n == 16 ? store(p, x) : store_first(p, x, n);
}

void rms_norm(const float* x, const float* weight, float epsilon, std::uint32_t n, float* out) {
  Floats squares = zero();
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats v = load_some(x + i, count);
    squares = fma(v, v, squares);
  });
  const float mean = add_elements(squares) / static_cast<float>(n);
  const Floats by = all(1.0f / __builtin_sqrtf(mean + epsilon));
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats v = mul(load_some(x + i, count), by);
    store_some(out + i, mul(v, load_some(weight + i, count)), count);
  });
}

void layer_norm(const float* x, const float* weight, const float* bias, float epsilon,
                std::uint32_t n, float* out) {
  const auto some = [](Floats v, std::uint32_t count) QUIRE_LAMBDA {
    return count == 16 ? v : choose(elements_between(0, count), v, zero());
  };
  Floats sums = zero(), squares = zero();
  each_16(n, [&](std::uint32_t i, std::uint32_t count)
                 QUIRE_LAMBDA { sums = add(sums, load_some(x + i, count)); });
  const Floats mean = all(add_elements(sums) / static_cast<float>(n));
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats v = some(sub(load_some(x + i, count), mean), count);
    squares = fma(v, v, squares);
  });
  const float variance = add_elements(squares) / static_cast<float>(n);
  const Floats by = all(1.0f / __builtin_sqrtf(variance + epsilon));
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats v = mul(sub(load_some(x + i, count), mean), by);
    store_some(out + i, fma(v, load_some(weight + i, count), load_some(bias + i, count)), count);
  });
}

void rope(float* x, std::uint32_t dim, const float* cosines, const float* sines) {
  float* y = x + dim / 2;
  each_16(dim / 2, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats a = load_some(x + i, count), b = load_some(y + i, count);
    const Floats c = load_some(cosines + i, count), s = load_some(sines + i, count);
    store_some(x + i, fms(a, c, mul(b, s)), count);
    store_some(y + i, fma(b, c, mul(a, s)), count);
  });
}

void add(float* x, const float* y, std::uint32_t n) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    store_some(x + i, add(load_some(x + i, count), load_some(y + i, count)), count);
  });
}

void add_scaled(float* x, const float* y, float by, std::uint32_t n) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    store_some(x + i, fma(load_some(y + i, count), all(by), load_some(x + i, count)), count);
  });
}

void silu_mul(const float* gate, const float* up, std::uint32_t n, float* out) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats x = load_some(gate + i, count);
    store_some(out + i, mul(times_sigmoid(x, x), load_some(up + i, count)), count);
  });
}

QUIRE_INLINE Floats gelu_of(Floats x) {
  const Floats u = mul(x, fma(mul(x, x), all(kGelu3), all(kGelu1)));
  return times_sigmoid(x, mul(all(2.0f), u));
}

void gelu_mul(const float* gate, const float* up, std::uint32_t n, float* out) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats gelu = gelu_of(load_some(gate + i, count));
    store_some(out + i, mul(gelu, load_some(up + i, count)), count);
  });
}

void clamped_mul(const float* gate, const float* up, float limit, std::uint32_t n, float* out) {
  const Floats high = all(limit), low = all(-limit);
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    Floats g = load_some(gate + i, count), u = load_some(up + i, count);
    g = choose(less(high, g), high, g);
    u = choose(less(high, u), high, u);
    u = choose(less(u, low), low, u);
    const Floats gated = times_sigmoid(g, mul(all(kClampedSlope), g));
    store_some(out + i, mul(add(u, all(1.0f)), gated), count);
  });
}

void gelu(const float* x, std::uint32_t n, float* out) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count)
                 QUIRE_LAMBDA { store_some(out + i, gelu_of(load_some(x + i, count)), count); });
}

void gelu_erf(const float* x, std::uint32_t n, float* out) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats v = load_some(x + i, count), z = mul(v, all(kSqrtHalf));
    const Floats t = div(all(1.0f), fma(all(kErfP), size_of(z), all(1.0f)));
    Floats p = fma(all(kErf5), t, all(kErf4));
    p = fma(p, t, all(kErf3));
    p = fma(p, t, all(kErf2));
    p = fma(p, t, all(kErf1));
    const Floats tail = mul(mul(p, t), exp(sub(zero(), mul(z, z))));
    const Floats twice = choose(less(v, zero()), tail, sub(all(2.0f), tail));
    store_some(out + i, mul(mul(all(0.5f), v), twice), count);
  });
}

void scale(float* x, float by, std::uint32_t n) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count)
                 QUIRE_LAMBDA { store_some(x + i, mul(load_some(x + i, count), all(by)), count); });
}

void shifted(const float* x, float less, float by, std::uint32_t n, float* out) {
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    store_some(out + i, mul(sub(load_some(x + i, count), all(less)), all(by)), count);
  });
}

void softcap(float* x, float cap, std::uint32_t n) {
  const Floats inverse = all(1.0f / cap);
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats t = tanh(mul(load_some(x + i, count), inverse));
    store_some(x + i, mul(all(cap), t), count);
  });
}

// The largest of x, which is not empty; -inf if all are NaN. Four chains hide the latency of max.
QUIRE_INLINE float max_of(const float* x, std::uint32_t n) {
  const Floats lowest = all(-__builtin_inff());
  Floats a = lowest, b = lowest, c = lowest, d = lowest;
  std::uint32_t i = 0;
  for (; i + 64 <= n; i += 64) {
    a = max(load(x + i), a);
    b = max(load(x + i + 16), b);
    c = max(load(x + i + 32), c);
    d = max(load(x + i + 48), d);
  }
  for (; i + 16 <= n; i += 16) a = max(load(x + i), a);
  if (i < n) {
    const std::uint32_t count = n - i;
    b = max(choose(elements_between(0, count), load_first(x + i, count), lowest), b);
  }
  return largest_of(max(max(a, b), max(c, d)));
}

float max(const float* x, std::uint32_t n) { return max_of(x, n) + 0.0f; }

std::uint32_t argmax(const float* x, std::uint32_t n) {
  constexpr std::uint32_t kBlock =
      2048;  // one pass finds the block, a short second one the place in it
  float best = -__builtin_inff();
  std::uint32_t block = n;
  for (std::uint32_t i = 0; i < n; i += kBlock) {
    const float m = max_of(x + i, least(kBlock, n - i));
    if (m > best) best = m, block = i;
  }
  for (std::uint32_t i = block; i < n; i += 16) {
    const std::uint32_t count = least(std::uint32_t{16}, n - i);
    const std::uint32_t valid = (1u << count) - 1u;
    const std::uint32_t found = equal_bits(load_some(x + i, count), all(best)) & valid;
    if (found != 0) return i + static_cast<std::uint32_t>(__builtin_ctz(found));
  }
  return 0;
}

float sum_exp(const float* x, float max_value, std::uint32_t n) {
  const Floats base = all(max_value);
  Floats sum = zero();
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    const Floats e = exp(sub(load_some(x + i, count), base));
    sum = add(sum, count == 16 ? e : choose(elements_between(0, count), e, zero()));
  });
  return add_elements(sum);
}

std::uint32_t above(const float* x, float floor, std::uint32_t n, std::uint32_t* out) {
  const Floats least_value = all(floor);
  std::uint32_t found = 0;
  each_16(n, [&](std::uint32_t i, std::uint32_t count) QUIRE_LAMBDA {
    std::uint32_t bits = at_least_bits(load_some(x + i, count), least_value);
    if (count < 16) bits &= (1u << count) - 1u;
    for (; bits != 0; bits &= bits - 1)
      out[found++] = i + static_cast<std::uint32_t>(__builtin_ctz(bits));
  });
  return found;
}

}  // namespace
}  // namespace quire
