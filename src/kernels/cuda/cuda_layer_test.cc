// Matrix products and what stands between them against plain arithmetic in double, and against
// themselves: one row or many must give the same bits.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cuda/coded.h"
#include "kernels/cuda/device_testing.h"
#include "kernels/vector.h"

namespace quire {
namespace {

struct Matrix {
  std::uint32_t outputs, inputs;
};

class CudaLinear : public Cuda {
 protected:
  std::vector<float> multiply(const void* weights, Matrix m, const Bits& rows, std::uint32_t count,
                              WeightCodes codes = {}) {
    void* out = room(std::max(count, kLibraryRows) * std::size_t{m.outputs} * 4);
    const LinearArgs a{.weights = weights,
                       .activations = up(activations(rows, count, m.inputs)),
                       .output = out,
                       .rows = count,
                       .outputs = m.outputs,
                       .inputs = m.inputs,
                       .kind = LinearOutput::rows_f32,
                       .codes = codes};
    ok(api_->tune_linear(a, stream_));
    ok(api_->linear(a, stream_));
    return down<float>(out, std::size_t{count} * m.outputs);
  }
};

// One output of one row, in double.
void expect_product(float got, Matrix m, const Bits& weights, const Bits& rows, std::uint64_t r,
                    std::uint64_t o) {
  double sum = 0, size = 0;
  for (std::uint32_t k = 0; k < m.inputs; ++k) {
    const double p =
        double{bf16_to_f32(weights[o * m.inputs + k])} * bf16_to_f32(rows[r * m.inputs + k]);
    sum += p, size += std::fabs(p);
  }
  ASSERT_NEAR(got, sum, 2e-6 * size) << r << " " << o;
}

TEST_F(CudaLinear, AgreesWithDoubleAndGivesEveryRowTheSameBitsInAnyCompany) {
  for (const Matrix m :
       {Matrix{960, 576}, {576, 1536}, {48, 64}, {512, 320}, {4096, 4096}, {512, 14336}}) {
    const Bits w = noise(1, std::size_t{m.outputs} * m.inputs), x = noise(2, 300ull * m.inputs);
    const void* weights = up(w);
    const std::vector<float> all = multiply(weights, m, x, 300);  // the library's
    Random random(3);
    for (int i = 0; i < 200; ++i) {
      const std::uint64_t r = random.below(300), o = random.below(m.outputs);
      ASSERT_NO_FATAL_FAILURE(expect_product(all[r * m.outputs + o], m, w, x, r, o));
    }
    for (const std::uint32_t rows : {1u, 3u, 8u, 9u, 16u, 17u, 33u, 128u, 129u}) {
      const std::uint32_t first = rows == 129 ? 171 : 0;
      const Bits part(x.begin() + std::size_t{first} * m.inputs,
                      x.begin() + std::size_t{first + rows} * m.inputs);
      const std::vector<float> some = multiply(weights, m, part, rows);
      ASSERT_EQ(
          0, std::memcmp(some.data(), all.data() + std::size_t{first} * m.outputs, some.size() * 4))
          << m.outputs << "x" << m.inputs << ", " << rows << " rows";
    }
  }
}

// Codes of every kind, and the bf16 numbers they stand for.
struct Coded {
  Coded(WeightCodes of, Matrix m) : kind(of), bytes(coded_bytes(of, m.outputs, m.inputs)) {
    Random random(m.inputs + kind.bits + static_cast<std::uint32_t>(kind.form));
    numbers.resize(std::size_t{m.outputs} * m.inputs);
    for (std::uint32_t o = 0; o < m.outputs; ++o)
      for (std::uint32_t k = 0; k < m.inputs; k += kCodedGroup) {
        const float factor = coded_scale_factor(kind.bits, kind.form);
        float pair[] = {static_cast<float>((random.unit() - 0.5) / (k % 96 + 3)),
                        static_cast<float>(random.unit() - 1)};
        if (random.below(9) == 0) pair[random.below(2)] = 0;
        std::uint16_t halves[] = {f32_to_f16(factor * pair[0]), f32_to_f16(pair[1])};
        if (kind.form != CodeForm::wide)
          pair[0] = f16_to_f32(halves[0]) / factor, pair[1] = f16_to_f32(halves[1]);
        if (kind.form == CodeForm::symmetric) {
          pair[1] = -8 * pair[0];
          halves[0] = f32_to_bf16(pair[0]);
          halves[1] = f32_to_bf16(pair[0] - bf16_to_f32(halves[0]));
        }
        const void* from = kind.form == CodeForm::wide ? static_cast<const void*>(pair) : halves;
        std::memcpy(&bytes[coded_pair_at(kind, m.inputs, o, k)], from, coded_pair_bytes(kind.form));
        for (std::uint32_t i = k; i < k + kCodedGroup; ++i) {
          const auto code = static_cast<std::uint8_t>(random.below(1u << kind.bits));
          const CodedPlace at = coded_at(kind, m.inputs, o, i);
          bytes[at.byte] |= std::byte{code} << at.shift;
          numbers[std::size_t{o} * m.inputs + i] = f32_to_bf16(std::fma(pair[0], code, pair[1]));
        }
      }
  }
  WeightCodes kind;
  std::vector<std::byte> bytes;
  Bits numbers;
};
constexpr WeightCodes kCodings[] = {{nullptr, 4, CodeForm::affine},
                                    {nullptr, 4, CodeForm::symmetric},
                                    {nullptr, 4, CodeForm::wide},
                                    {nullptr, 8, CodeForm::affine},
                                    {nullptr, 8, CodeForm::wide}};

TEST_F(CudaLinear, CodesGiveTheBitsOfTheNumbersTheyStandFor) {
  for (const Matrix m :
       {Matrix{960, 576}, {48, 64}, {16, 32}, {576, 1536}, {512, 320}, {4096, 4096}, {2208, 1504}})
    for (WeightCodes codes : kCodings) {
      const Coded coded(codes, m);
      const Bits x = noise(2, 128ull * m.inputs);
      const bool plain_too = m.inputs % 64 == 0;
      const void* weights = up(coded.numbers);
      codes.data = up(coded.bytes);
      void* room_for_them = room(coded.numbers.size() * 2);
      for (const std::uint32_t rows : {1u, 2u, 7u, 8u, 16u, 32u, 33u, 128u}) {
        if (rows > kPackedRowsMax && !plain_too) continue;
        const std::vector<float> got = multiply(room_for_them, m, x, rows, codes);
        if (plain_too) {
          ASSERT_EQ(multiply(weights, m, x, rows), got)
              << m.outputs << "x" << m.inputs << " of " << codes.bits << " bits, form "
              << static_cast<int>(codes.form) << ", " << rows << " rows";
          continue;
        }
        for (std::uint32_t o = 0; o < m.outputs; o += 7)  // no kernel to compare with
          ASSERT_NO_FATAL_FAILURE(
              expect_product(got[(rows - 1) * m.outputs + o], m, coded.numbers, x, rows - 1, o));
      }
    }
}

TEST_F(CudaLinear, CodesAreGatedAndEmbeddedAsTheNumbersAre) {
  const Matrix m{3072, 576};
  const Bits x = noise(5, 32 * 576);
  for (WeightCodes codes : kCodings) {
    const Coded coded(codes, m);
    const void* weights = up(coded.numbers);
    codes.data = up(coded.bytes);
    for (const std::uint32_t rows : {1u, 13u, 32u})
      for (const LinearOutput kind :
           {LinearOutput::gated, LinearOutput::gated_gelu, LinearOutput::rows_bf16}) {
        const std::size_t count = activation_elements(rows, m.outputs);
        Bits both[2];
        for (int side = 0; side < 2; ++side) {
          void* out = room(count * 2);
          ok(api_->linear({.weights = weights,
                           .activations = up(activations(x, rows, m.inputs)),
                           .output = out,
                           .rows = rows,
                           .outputs = m.outputs,
                           .inputs = m.inputs,
                           .kind = kind,
                           .codes = side == 0 ? WeightCodes{} : codes},
                          stream_));
          both[side] = down<std::uint16_t>(out, count);
        }
        ASSERT_EQ(both[0], both[1]) << codes.bits << " bits, " << rows << " rows";
      }
    const std::vector<std::uint32_t> tokens{3, 3071, 0, 99};
    auto* rows = static_cast<float*>(room(4 * m.inputs * 4));
    ok(api_->embed({nullptr, up(tokens), nullptr, rows, 4, m.inputs, 2.0f, codes}, stream_));
    const auto got = down<float>(rows, 4 * m.inputs);
    for (std::uint32_t i = 0; i < got.size(); ++i)
      ASSERT_EQ(got[i],
                2 * bf16_to_f32(coded.numbers[tokens[i / m.inputs] * m.inputs + i % m.inputs]));
  }
}

TEST_F(CudaLinear, GatedProductsAreTheSameFusedOrNot) {
  const Matrix m{3072, 576};  // 1,536 units
  const std::uint32_t width = m.outputs / 2;
  const Bits w = noise(4, std::size_t{m.outputs} * m.inputs, 0.05f), x = noise(5, 100 * 576);
  const void* weights = up(w);
  for (const bool gelu : {false, true}) {
    LinearArgs a{.weights = weights,
                 .activations = up(activations(x, 100, m.inputs)),
                 .output = room(std::size_t{kLibraryRows} * m.outputs * 2),
                 .rows = 100,
                 .outputs = m.outputs,
                 .inputs = m.inputs,
                 .kind = LinearOutput::rows_bf16};
    ok(api_->tune_linear(a, stream_));
    ok(api_->linear(a, stream_));
    const Bits plain = down<std::uint16_t>(a.output, 100ull * m.outputs);
    void* apart = room(100ull * width * 2);
    ok(api_->gate({a.output, apart, 100, width, gelu}, stream_));
    const Bits product = down<std::uint16_t>(apart, 100ull * width);
    for (std::uint32_t i = 0; i < 100 * width; i += 37) {
      const std::uint32_t r = i / width, u = i % width;
      const auto at = [&](std::uint32_t up) {
        return double{bf16_to_f32(plain[r * m.outputs + u / 8 * 16 + up * 8 + u % 8])};
      };
      const double g = at(0), y = gelu ? 1.5957691216057308 * (g + 0.044715 * g * g * g) : g;
      ASSERT_NEAR(bf16_to_f32(product[i]), g / (1 + std::exp(-y)) * at(1),
                  0.005 * std::fabs(g * at(1)) + 1e-6);
    }
    for (const std::uint32_t rows : {1u, 13u, 16u}) {
      a.rows = rows;
      a.activations = up(activations(x, rows, m.inputs));
      a.kind = gelu ? LinearOutput::gated_gelu : LinearOutput::gated;
      a.output = room(activation_elements(rows, width) * 2);
      ok(api_->linear(a, stream_));
      const Bits fused = down<std::uint16_t>(a.output, activation_elements(rows, width));
      for (std::uint32_t r = 0; r < rows; ++r)
        for (std::uint32_t u = 0; u < width; ++u)
          ASSERT_EQ(fused[activation_at(rows, width, r, u)], product[r * width + u])
              << r << " " << u;
    }
  }
}

TEST_F(Cuda, AddNormAgreesWithDoubleAndPacksItsRows) {
  for (const std::uint32_t width : {576u, 640u, 4096u, 8192u})
    for (const std::uint32_t rows : {1u, 20u, 100u})
      for (const bool post : {false, true}) {
        const std::vector<float> x = floats(1, std::size_t{rows} * width, -3, 3),
                                 w = floats(2, width, 0.5f, 2), pw = floats(3, width, 0.5f, 2);
        const Bits y = noise(4, std::size_t{rows} * width);
        float* dx = up(x);
        void* out = room(activation_elements(rows, width) * 2);
        const AddNormArgs a{.x = dx,
                            .y = up(y),
                            .post_norm = post ? up(pw) : nullptr,
                            .weight = up(w),
                            .output = out,
                            .rows = rows,
                            .width = width,
                            .epsilon = 1e-5f};
        ok(api_->add_norm(a, stream_));
        const auto summed = down<float>(dx, x.size());
        const Bits normed = down<std::uint16_t>(out, activation_elements(rows, width));
        for (std::uint32_t r = 0; r < rows; ++r) {
          double ys = 0, xs = 0;
          const std::size_t at = std::size_t{r} * width;
          for (std::uint32_t i = 0; i < width; ++i) ys += std::pow(bf16_to_f32(y[at + i]), 2);
          std::vector<double> sum(width);
          for (std::uint32_t i = 0; i < width; ++i) {
            const double scale = post ? pw[i] / std::sqrt(ys / width + 1e-5) : 1;
            sum[i] = x[at + i] + bf16_to_f32(y[at + i]) * scale;
            xs += sum[i] * sum[i];
            ASSERT_NEAR(summed[at + i], sum[i], 2e-5);
          }
          for (std::uint32_t i = 0; i < width; ++i) {
            const double want = sum[i] / std::sqrt(xs / width + 1e-5) * w[i];
            ASSERT_NEAR(bf16_to_f32(normed[activation_at(rows, width, r, i)]), want,
                        0.004 * std::fabs(want) + 1e-5);
          }
        }
      }
}

TEST_F(Cuda, GatherPicksRowsOfBothKinds) {
  constexpr std::uint32_t kHidden = 96, kWidth = 64;
  for (const std::uint32_t rows : {5u, 40u})
    for (const std::uint32_t picked : {2u, 20u}) {
      const std::vector<float> x = floats(1, rows * kHidden, -3, 3);
      const Bits attended = noise(2, rows * kWidth);
      std::vector<std::uint32_t> select(picked);
      for (std::uint32_t i = 0; i < picked; ++i) select[i] = (i * 7 + 3) % rows;
      void* x_out = room(picked * kHidden * 4);
      void* out = room(activation_elements(picked, kWidth) * 2);
      ok(api_->gather({up(select), up(x), static_cast<float*>(x_out),
                       up(activations(attended, rows, kWidth)), out, rows, picked, kHidden, kWidth},
                      stream_));
      const auto got_x = down<float>(x_out, picked * kHidden);
      const Bits got = down<std::uint16_t>(out, activation_elements(picked, kWidth));
      for (std::uint32_t r = 0; r < picked; ++r) {
        for (std::uint32_t i = 0; i < kHidden; ++i)
          ASSERT_EQ(got_x[r * kHidden + i], x[select[r] * kHidden + i]);
        for (std::uint32_t i = 0; i < kWidth; ++i)
          ASSERT_EQ(got[activation_at(picked, kWidth, r, i)], attended[select[r] * kWidth + i]);
      }
    }
}

TEST_F(Cuda, EmbedAndArgmaxDoWhatTheySay) {
  const Bits table = noise(1, 100 * 64);
  const std::vector<CudaBest> found{{99, 0, 0}, {kNoToken, 0, 0}, {7, 0, 0}};
  const std::vector<std::uint32_t> tokens{3, 99, 0, kBestOfRow | 2, kBestOfRow, kBestOfRow | 1},
      meant{3, 99, 0, 7, 99, 0};
  float* x = static_cast<float*>(room(6 * 64 * 4));
  ok(api_->embed({up(table), up(tokens), up(found), x, 6, 64, 2.0f}, stream_));
  const auto rows = down<float>(x, 6 * 64);
  for (std::uint32_t i = 0; i < 6 * 64; ++i)
    ASSERT_EQ(rows[i], 2 * bf16_to_f32(table[meant[i / 64] * 64 + i % 64]));

  std::vector<float> logits = floats(2, 4 * 5003, -9, -1);
  logits[17] = logits[4000] = -0.5f;  // a tie: the lower one
  logits[5003 + 5002] = 3;
  logits[2 * 5003] = -0.0f, logits[2 * 5003 + 9] = 0.0f;  // equal
  auto* best = static_cast<CudaBest*>(room(5 * sizeof(CudaBest)));
  std::vector<float> all = logits;
  all.resize(5 * 5003, std::nanf(""));
  ok(api_->argmax({up(all), best, 5, 5003}, stream_));
  const auto got = down<CudaBest>(best, 5);
  EXPECT_EQ(got[0].token, 17u);
  EXPECT_EQ(got[1].token, 5002u);
  EXPECT_EQ(got[2].token, 0u);
  EXPECT_EQ(got[3].token,
            std::max_element(logits.begin() + 3 * 5003, logits.end()) - logits.begin() - 3 * 5003);
  EXPECT_FALSE(std::isfinite(got[4].max + got[4].sum));
  const VectorKernels& cpu = vector_kernels(Isa::scalar);
  for (std::size_t r = 0; r < 4; ++r) {  // bit for bit
    EXPECT_EQ(got[r].max, logits[r * 5003 + got[r].token]);
    EXPECT_EQ(got[r].sum, cpu.sum_exp(&logits[r * 5003], got[r].max, 5003));
  }
}

}  // namespace
}  // namespace quire
