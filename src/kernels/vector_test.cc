#include "kernels/vector.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/ref/math.h"

namespace quire {
namespace {

using Floats = std::vector<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<Isa> fast_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::avx2, Isa::avx512})
    if (cpu_has(isa)) isas.push_back(isa);
  return isas;
}

// Mostly ordinary numbers; `wild` ones include zeros of both signs, subnormals, huge values,
// infinities and NaN.
Floats numbers(Random& random, std::size_t n, bool wild) {
  constexpr float kOdd[] = {0.0f,    -0.0f,  1e-40f, -1e-45f, 3e38f,   -3e38f, kInf,
                            -kInf,   NAN,    -87.3f, -87.4f,  88.37f,  88.4f,  0.625f,
                            -0.625f, 1e-30f, 104.0f, -104.0f, 0.6249f, 1.0f};
  Floats x(n);
  for (float& v : x) {
    v = static_cast<float>((random.unit() - 0.5) *
                           std::ldexp(1.0, static_cast<int>(random.below(12)) - 4));
    if (wild && random.chance(0.3)) v = kOdd[random.below(std::size(kOdd))];
    if (wild && random.chance(0.1))
      v = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
  }
  return x;
}

testing::AssertionResult same_bits(const Floats& a, const Floats& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i])))
      return testing::AssertionFailure()
             << "element " << i << " of " << a.size() << ": " << a[i] << " and " << b[i];
  return testing::AssertionSuccess();
}

// Runs `f` with the scalar kernels and each fast table on the same inputs, for many lengths.
void expect_same(const std::function<Floats(const VectorKernels&, Floats, Floats)>& f) {
  Random random(11);
  for (std::uint32_t n = 1; n < 3000; n = n < 70 ? n + 1 : n * 2 + 5)
    for (int round = 0; round < 8; ++round) {
      const Floats x = numbers(random, n, round % 2 == 1), y = numbers(random, n, round % 4 == 3);
      const Floats wanted = f(kVectorScalar, x, y);
      for (const Isa isa : fast_isas())
        ASSERT_TRUE(same_bits(wanted, f(vector_kernels(isa), x, y))) << isa_name(isa) << " n " << n;
    }
}

std::uint32_t size_of(const Floats& x) { return static_cast<std::uint32_t>(x.size()); }

TEST(Vector, RmsNormIsTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    k.rms_norm(x.data(), y.data(), 1e-5f, size_of(x), x.data());
    return x;
  });
}

TEST(Vector, RopeIsTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    Floats pairs = x;
    pairs.insert(pairs.end(), y.begin(), y.end());
    Floats cosines(x.size()), sines(x.size());
    for (std::size_t i = 0; i < x.size(); ++i)
      cosines[i] = std::cos(0.1f * i), sines[i] = std::sin(0.1f * i);
    k.rope(pairs.data(), 2 * size_of(x), cosines.data(), sines.data());
    return pairs;
  });
}

TEST(Vector, AddAndScaleAreTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    k.add(x.data(), y.data(), size_of(x));
    k.scale(x.data(), 0.37f, size_of(x));
    k.add_scaled(x.data(), y.data(), 1.7f, size_of(x));
    return x;
  });
}

TEST(Vector, GatesAreTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    k.silu_mul(x.data(), y.data(), size_of(x), x.data());
    return x;
  });
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    k.gelu_mul(x.data(), y.data(), size_of(x), y.data());
    return y;
  });
}

TEST(Vector, LayerNormIsTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    Floats bias(y.rbegin(), y.rend());
    k.layer_norm(x.data(), y.data(), bias.data(), 1e-5f, size_of(x), x.data());
    return x;
  });
}

TEST(Vector, GatesWithoutAPartnerAndClampedOnesAreTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    Floats clamped = x;
    k.clamped_mul(x.data(), y.data(), 1.5f, size_of(x), clamped.data());
    k.gelu(x.data(), size_of(x), x.data());
    k.gelu_erf(y.data(), size_of(y), y.data());
    x.insert(x.end(), y.begin(), y.end());
    x.insert(x.end(), clamped.begin(), clamped.end());
    return x;
  });
}

TEST(Vector, GeluIsThatOfTheErrorFunction) {
  for (float x = -8; x <= 8; x += 1.0f / 64) {
    float got;
    vector_kernels(Isa::scalar).gelu_erf(&x, 1, &got);
    EXPECT_NEAR(got, x * 0.5 * (1 + std::erf(x / std::sqrt(2.0))), 4e-7) << x;
  }
}

TEST(Vector, SoftcapIsTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    k.shifted(x.data(), 0.3f, 1.7f, size_of(x), x.data());
    k.softcap(x.data(), 30.0f, size_of(x));
    k.softcap(y.data(), 0.5f, size_of(y));
    x.insert(x.end(), y.begin(), y.end());
    return x;
  });
}

TEST(Vector, ReductionsAreTheSameEverywhere) {
  expect_same([](const VectorKernels& k, Floats x, Floats y) {
    for (float& v : y)
      if (!std::isfinite(v)) v = 1;
    const float top = k.max(y.data(), size_of(y));
    return Floats{k.max(x.data(), size_of(x)), top, k.sum_exp(y.data(), top, size_of(y)),
                  k.sum_exp(x.data(), 0.5f, size_of(x)),
                  std::bit_cast<float>(k.argmax(x.data(), size_of(x)))};
  });
}

TEST(Vector, ArgmaxTakesTheFirstOfEquals) {
  for (const Isa isa : kIsas) {
    if (!cpu_has(isa)) continue;
    const VectorKernels& k = vector_kernels(isa);
    for (const std::uint32_t n : {1u, 15u, 16u, 2048u, 2049u, 49152u, 49155u}) {
      Floats x(n, -2.0f);
      EXPECT_EQ(k.argmax(x.data(), n), 0u);
      x[n - 1] = 0.0f;
      EXPECT_EQ(k.argmax(x.data(), n), n - 1);
      x[n / 2] = -0.0f;  // equal to +0
      EXPECT_EQ(k.argmax(x.data(), n), n / 2);
      x[0] = NAN;
      EXPECT_EQ(k.argmax(x.data(), n), n == 1 ? 0 : n / 2);
      EXPECT_EQ(k.argmax(Floats(n, -kInf).data(), n), 0u);
      EXPECT_EQ(k.argmax(Floats(n, NAN).data(), n), 0u);
    }
  }
}

TEST(Vector, AboveFindsTheSamePlacesEverywhere) {
  Random random(5);
  for (const std::uint32_t n : {1u, 7u, 16u, 17u, 1000u, 5003u}) {
    Floats x(n);
    for (float& v : x) v = static_cast<float>(random.below(9)) - 4;
    x[n / 2] = NAN;
    x[n - 1] = -kInf;
    for (const float floor : {-kInf, -2.0f, 3.0f, kInf}) {
      std::vector<std::uint32_t> expected;
      for (std::uint32_t i = 0; i < n; ++i)
        if (x[i] >= floor) expected.push_back(i);
      for (const Isa isa : kIsas) {
        if (!cpu_has(isa)) continue;
        std::vector<std::uint32_t> places(n);
        places.resize(vector_kernels(isa).above(x.data(), floor, n, places.data()));
        EXPECT_EQ(places, expected) << n << " above " << floor;
      }
    }
  }
}

// |got - wanted| in units of wanted's last place.
double ulps(float got, double wanted) {
  const int exponent = std::max(std::ilogb(wanted), -126);
  return std::fabs(got - wanted) / std::ldexp(1.0, exponent - 23);
}

TEST(Vector, ExpIsWithinOneUlp) {
  double worst = 0;
  for (float x = kExpMin; x <= kExpMax; x += 0.00173f)
    worst = std::max(worst, ulps(ref::exp(x), std::exp(double{x})));
  for (float x = 1e-10f; x < 80; x *= 1.001f) {
    worst = std::max(worst, ulps(ref::exp(x), std::exp(double{x})));
    worst = std::max(worst, ulps(ref::exp(-x), std::exp(-double{x})));
  }
  EXPECT_LT(worst, 1.0);
  EXPECT_EQ(ref::exp(0.0f), 1.0f);
  EXPECT_EQ(ref::exp(-kInf), 0.0f);
  EXPECT_EQ(ref::exp(-88.0f), 0.0f);
  EXPECT_EQ(ref::exp(kInf), kInf);
  EXPECT_TRUE(std::isnan(ref::exp(std::bit_cast<float>(0x7fc12345u))));
}

TEST(Vector, CoarseExpIsWithinItsBound) {
  double worst = 0;
  for (float x = kExpMin; x <= 0; x += 0.00173f)
    worst = std::max(worst, std::fabs(ref::exp_coarse(x) / std::exp(double{x}) - 1));
  EXPECT_LT(worst, 1.1e-4);
  EXPECT_EQ(ref::exp_coarse(0.0f), 1.0f);
  EXPECT_EQ(ref::exp_coarse(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(ref::exp_coarse(std::bit_cast<float>(0x7fc12345u))));
}

TEST(Vector, TanhSiluAndGeluAreAccurate) {
  double tanh_worst = 0, silu_worst = 0, gelu_worst = 0;
  for (float size = 1e-6f; size < 40; size *= 1.0007f)
    for (const float x : {size, -size}) {
      const double d = x;
      tanh_worst = std::max(tanh_worst, ulps(ref::tanh(x), std::tanh(d)));
      if (x < -20) continue;  // tails: absolute error below 1e-8 is as good as exact
      float silu, gelu;
      const float one = 1;
      kVectorScalar.silu_mul(&x, &one, 1, &silu);
      kVectorScalar.gelu_mul(&x, &one, 1, &gelu);
      silu_worst = std::max(silu_worst, ulps(silu, d / (1 + std::exp(-d))));
      const double u = std::sqrt(2 / M_PI) * (d + 0.044715 * d * d * d);
      gelu_worst = std::max(gelu_worst, std::fabs(gelu - 0.5 * d * (1 + std::tanh(u))));
    }
  EXPECT_LT(tanh_worst, 3);
  EXPECT_LT(silu_worst, 3);
  EXPECT_LT(gelu_worst, 1e-6);
}

}  // namespace
}  // namespace quire
