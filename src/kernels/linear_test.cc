#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/linear_samples.h"

namespace quire {
namespace {

constexpr Activations kModes[] = {Activations::int8, Activations::int16};
constexpr float kUnwritten = 12345.0f;

std::vector<float> multiply(const LinearKernels& kernels, const SampleMatrix& w,
                            const SampleRows& x) {
  const std::uint32_t outputs = w.packed.outputs, rows = x.rows.rows;
  std::vector<float> out(std::size_t{rows} * outputs, kUnwritten);
  kernels.multiply(w.packed, x.rows, 0, rows, 0, w.packed.padded_outputs(), out.data(), outputs,
                   nullptr);
  return out;
}

bool same(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0 || (std::isnan(a) && std::isnan(b));
}

// Empty when all are the same bits (any NaN equals any other), else where they first differ.
std::string difference(const std::vector<float>& got, const std::vector<float>& want) {
  for (std::size_t i = 0; i < want.size(); ++i)
    if (!same(got[i], want[i]))
      return "at " + std::to_string(i) + ": " + std::to_string(got[i]) + " for " +
             std::to_string(want[i]);
  return "";
}

std::string label(Isa isa, DType type, Activations mode, std::uint32_t rows) {
  return std::string(isa_name(isa)) + " " + std::string(dtype_info(type).name) +
         (mode == Activations::int8 ? " int8 " : " int16 ") + std::to_string(rows) + " rows";
}

void expect_all_equal_scalar(const SampleMatrix& w, std::uint32_t rows,
                             const std::vector<float>& floats) {
  const LinearKernels& scalar = linear_kernels(Isa::scalar);
  for (const Activations mode : kModes) {
    if (mode == Activations::int16 && !uses_quantized_activations(w.packed.type)) continue;
    const SampleRows reference(mode, rows, w.packed.inputs, scalar, floats);
    const std::vector<float> want = multiply(scalar, w, reference);
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa)) continue;
      const SampleRows x(mode, rows, w.packed.inputs, linear_kernels(isa), floats);
      EXPECT_EQ(difference(multiply(linear_kernels(isa), w, x), want), "")
          << label(isa, w.packed.type, mode, rows);
    }
  }
}

std::uint32_t small_inputs(DType type) {
  const std::uint32_t block = dtype_info(type).block_elements;
  return (95 + block) / block * block;
}

TEST(Linear, EveryInstructionSetGivesTheBitsOfTheReference) {
  Random random(1);
  for (const DType type : kLinearTypes) {
    for (const std::uint32_t outputs : {1u, 16u, 87u}) {
      const std::uint32_t inputs = small_inputs(type) * (outputs == 16 ? 2 : 1);
      const SampleMatrix w(type, outputs, inputs, random);
      for (const std::uint32_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 8u, 9u, 33u})
        expect_all_equal_scalar(w, rows, sample_floats(std::size_t{rows} * inputs, random));
    }
  }
}

TEST(Linear, PlainWeightsTakeAnyNumberOfInputs) {
  Random random(2);
  for (const DType type : {DType::f32, DType::f16, DType::bf16})
    for (const std::uint32_t inputs : {1u, 3u, 17u}) {
      const SampleMatrix w(type, 35, inputs, random);
      expect_all_equal_scalar(w, 5, sample_floats(5 * inputs, random));
    }
}

TEST(Linear, AnyCutOfRowsAndColumnsGivesTheSameBits) {
  Random random(3);
  for (const DType type : kLinearTypes) {
    const std::uint32_t outputs = 150, rows = 21, inputs = small_inputs(type);
    const SampleMatrix w(type, outputs, inputs, random);
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa)) continue;
      const LinearKernels& kernels = linear_kernels(isa);
      const SampleRows x(Activations::int8, rows, inputs, kernels,
                         sample_floats(rows * inputs, random));
      const std::vector<float> whole = multiply(kernels, w, x);
      std::vector<float> parts(whole.size(), kUnwritten);
      const std::byte* const anything[] = {w.packed.data, w.packed.data + 100};
      Fetch fetch{.blocks = anything, .count = 2, .bytes = 3000};  // changes nothing
      for (std::uint32_t r = 0; r < rows;) {
        const std::uint32_t r_end = std::min<std::uint32_t>(rows, r + 1 + random.below(9));
        for (std::uint32_t c = 0; c < w.packed.padded_outputs();) {
          const std::uint32_t c_end =
              std::min<std::uint32_t>(w.packed.padded_outputs(), c + 16 * (1 + random.below(6)));
          kernels.multiply(w.packed, x.rows, r, r_end, c, c_end, parts.data(), outputs, &fetch);
          c = c_end;
        }
        r = r_end;
      }
      EXPECT_EQ(difference(parts, whole), "") << label(isa, type, Activations::int8, rows);
    }
  }
}

TEST(Linear, OnlyTheAskedRowsAndColumnsAreWritten) {
  Random random(4);
  for (const DType type : {DType::f16, DType::q4_1, DType::q8_0, DType::q6_k}) {
    const std::uint32_t outputs = 90, rows = 12, inputs = small_inputs(type), stride = 110;
    const SampleMatrix w(type, outputs, inputs, random);
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa)) continue;
      const SampleRows x(Activations::int8, rows, inputs, linear_kernels(isa),
                         sample_floats(rows * inputs, random));
      std::vector<float> out(rows * stride, kUnwritten);
      linear_kernels(isa).multiply(w.packed, x.rows, 3, 11, 32, 96, out.data(), stride, nullptr);
      for (std::uint32_t i = 0; i < out.size(); ++i) {
        const std::uint32_t r = i / stride, o = i % stride;
        const bool inside = r >= 3 && r < 11 && o >= 32 && o < outputs;
        EXPECT_EQ(out[i] != kUnwritten, inside)
            << label(isa, type, Activations::int8, rows) << " " << r << "," << o;
      }
    }
  }
}

// What linear.h says an activation becomes, in plain words: the value its codes stand for.
std::vector<double> coded_values(const std::vector<float>& x, Activations mode) {
  const float top = mode == Activations::int8 ? 127.0f : 16319.0f;
  std::vector<double> values(x.size());
  for (std::size_t b = 0; b < x.size(); b += 32) {
    float amax = 0;
    for (std::size_t i = b; i < b + 32; ++i) amax = std::max(amax, std::fabs(x[i]));
    for (std::size_t i = b; i < b + 32 && amax > 0; ++i)
      values[i] = std::nearbyint(x[i] * (top / amax)) * double{amax / top};
  }
  return values;
}

TEST(Linear, OutputsAreTheDotsOfTheDequantizedWeights) {
  Random random(5);
  for (const DType type : kLinearTypes) {
    const std::uint32_t outputs = 19, rows = 3, inputs = 512;
    const SampleMatrix w(type, outputs, inputs, random);
    for (const Activations mode : kModes) {
      const std::vector<float> floats = sample_floats(rows * inputs, random);
      const SampleRows x(mode, rows, inputs, linear_kernels(Isa::scalar), floats);
      const std::vector<float> out = multiply(linear_kernels(Isa::scalar), w, x);
      const std::vector<double> values = uses_quantized_activations(type)
                                             ? coded_values(floats, mode)
                                             : std::vector<double>(floats.begin(), floats.end());
      std::vector<float> weights(inputs);
      for (std::uint32_t o = 0; o < outputs; ++o) {
        dequantize_row(type, w.row(o), inputs, weights.data());
        for (std::uint32_t r = 0; r < rows; ++r) {
          double want = 0, size = 0;
          for (std::uint32_t k = 0; k < inputs; ++k) {
            want += weights[k] * values[r * inputs + k];
            size += std::fabs(weights[k] * values[r * inputs + k]);
          }
          EXPECT_NEAR(out[r * outputs + o], want, size * 1e-6)
              << label(Isa::scalar, type, mode, rows) << " output " << o;
        }
      }
    }
  }
}

TEST(Linear, SixteenBitActivationsAreFiftyTimesCloserToTheFloats) {
  Random random(6);
  const std::uint32_t inputs = 1024, outputs = 64;
  const SampleMatrix w(DType::q8_0, outputs, inputs, random);
  const std::vector<float> floats = sample_floats(inputs, random);
  std::vector<float> weights(inputs);
  double error[2] = {};
  for (const Activations mode : kModes) {
    const SampleRows x(mode, 1, inputs, linear_kernels(best_isa()), floats);
    const std::vector<float> out = multiply(linear_kernels(best_isa()), w, x);
    for (std::uint32_t o = 0; o < outputs; ++o) {
      double want = 0;
      dequantize_row(DType::q8_0, w.row(o), inputs, weights.data());
      for (std::uint32_t k = 0; k < inputs; ++k) want += double{weights[k]} * floats[k];
      error[static_cast<int>(mode)] += std::fabs(out[o] - want);
    }
  }
  EXPECT_GT(error[0], 50 * error[1]);
}

TEST(Linear, ExtremeCodesAndActivationsStayExact) {
  for (const DType type : kLinearTypes) {
    if (!uses_quantized_activations(type)) continue;
    const std::uint32_t inputs = small_inputs(type), rows = 9;
    for (const std::uint8_t fill : {0x00, 0xff, 0x80, 0x7f, 0x88, 0xf0}) {
      std::vector<std::byte> block(dtype_info(type).block_bytes, std::byte{fill});
      for (const std::size_t field : half_fields(type)) {
        const std::uint16_t one = 0x3c00;
        std::memcpy(&block[field], &one, sizeof one);
      }
      const SampleMatrix w(type, 33, inputs, block);
      for (const float sign : {1.0f, -1.0f}) {  // all the same sign: the largest sums there are
        expect_all_equal_scalar(w, rows, std::vector<float>(rows * inputs, sign * 3.0f));
        std::vector<float> alternating(rows * inputs);
        for (std::size_t i = 0; i < alternating.size(); ++i) alternating[i] = i % 2 ? sign : -sign;
        expect_all_equal_scalar(w, rows, alternating);
      }
    }
  }
}

TEST(Linear, AnyScaleBitsGiveTheSameAnswerEverywhere) {
  Random random(7);
  for (const DType type : kLinearTypes) {
    const std::uint32_t inputs = small_inputs(type), rows = 3;
    std::vector<std::byte> bytes(row_bytes(type, inputs) * 7 + 1);
    for (int round = 0; round < 5; ++round) {  // f16 Inf, NaN and subnormals among them
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.next());
      const SampleMatrix w(type, 48, inputs, bytes);
      expect_all_equal_scalar(w, rows, sample_floats(rows * inputs, random));
    }
  }
}

TEST(Linear, StrangeActivationsAreTheSameEverywhere) {
  Random random(8);
  const float inf = std::numeric_limits<float>::infinity();
  const float strange[] = {0.0f,      -0.0f,     1e-45f, 1e-38f,
                           0x1p-100f, 0x1p-101f, 3e38f,  -3e38f,
                           1e-20f,    inf,       -inf,   std::numeric_limits<float>::quiet_NaN()};
  for (const DType type : kLinearTypes) {
    const std::uint32_t inputs = small_inputs(type) * 2, rows = 12;
    const SampleMatrix w(type, 20, inputs, random);
    std::vector<float> x(rows * inputs, 0.0f);
    for (std::uint32_t r = 0; r < rows; ++r)  // one strange value among ordinary ones, or alone
      for (std::uint32_t k = 0; k < inputs; ++k)
        x[r * inputs + k] = k % 7 == 0       ? strange[r]
                            : k < inputs / 2 ? static_cast<float>(random.unit())
                                             : 0;
    expect_all_equal_scalar(w, rows, x);
  }
}

TEST(Linear, AnActivationThatIsNotFiniteMakesTheWholeRowNan) {
  Random random(9);
  const std::uint32_t inputs = 128;
  const SampleMatrix w(DType::q4_0, 16, inputs, random);
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x = sample_floats(2 * inputs, random);
    x[77] = bad;
    const SampleRows rows(Activations::int8, 2, inputs, linear_kernels(best_isa()), x);
    const std::vector<float> out = multiply(linear_kernels(best_isa()), w, rows);
    for (std::uint32_t o = 0; o < 16; ++o) {
      EXPECT_TRUE(std::isnan(out[o]));
      EXPECT_FALSE(std::isnan(out[16 + o]));
    }
  }
}

TEST(Linear, ActivationsMayBeEncodedInPieces) {
  Random random(10);
  const std::uint32_t inputs = 192, rows = 10;
  const std::vector<float> x = sample_floats(rows * inputs, random);
  for (const Activations mode : kModes) {
    const SampleRows reference(mode, rows, inputs, linear_kernels(Isa::scalar), x);
    for (const Isa isa : kIsas) {
      if (!cpu_has(isa)) continue;
      SampleRows pieces(mode, rows, inputs, linear_kernels(isa), std::vector<float>(x.size()));
      for (std::uint32_t r = 0; r < rows; ++r)
        for (const auto& [first, count] : {std::pair{96u, 96u}, {0u, 32u}, {32u, 64u}})
          linear_kernels(isa).quantize(&x[r * inputs + first], r, first, count, pieces.rows);
      EXPECT_EQ(std::memcmp(pieces.memory.get(), reference.memory.get(),
                            activation_bytes(mode, rows, inputs)),
                0)
          << label(isa, DType::q8_0, mode, rows);
    }
  }
}

TEST(Linear, OutputsCanBeGatheredFromSeveralMatrices) {
  Random random(11);
  const std::uint32_t inputs = 64;
  const SampleMatrix a(DType::q4_1, 20, inputs, random), b(DType::q4_1, 12, inputs, random);
  const AlignedBytes memory = aligned_bytes(packed_bytes(DType::q4_1, 32, inputs));
  SampleMatrix both(DType::q4_1, 32, inputs, random);
  both.packed = pack_matrix(DType::q4_1, 32, inputs,
                            [&](std::uint32_t o) { return o < 20 ? a.row(o) : b.row(o - 20); },
                            {memory.get(), packed_bytes(DType::q4_1, 32, inputs)});
  const LinearKernels& kernels = linear_kernels(best_isa());
  const SampleRows x(Activations::int8, 1, inputs, kernels, sample_floats(inputs, random));
  const std::vector<float> joined = multiply(kernels, both, x);
  const std::vector<float> first = multiply(kernels, a, x), second = multiply(kernels, b, x);
  EXPECT_EQ(difference({joined.begin(), joined.begin() + 20}, first), "");
  EXPECT_EQ(difference({joined.begin() + 20, joined.end()}, second), "");
}

}  // namespace
}  // namespace quire
