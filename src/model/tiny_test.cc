#include "model/tiny.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/arch/arch.h"
#include "model/weights_source.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

// A file of the test's own that goes when the test ends.
struct TemporaryFile {
  explicit TemporaryFile(const std::string& name) : path(::testing::TempDir() + name) {}
  ~TemporaryFile() { std::remove(path.c_str()); }
  std::string path;
};

TEST(TinyModel, EveryArchitectureAndTypeOpensWithAllItsTensors) {
  const TemporaryFile file("quire_tiny_test.gguf");
  const std::pair<const char*, std::size_t> tensors_per_layer[] = {
      {"llama", 9},   {"gemma3", 13},     {"qwen2", 12}, {"qwen3", 11}, {"smollm3", 9},
      {"granite", 9}, {"phi3", 9},        {"olmo2", 11}, {"glm4", 14},  {"gemma2", 11},
      {"gpt2", 16},   {"starcoder2", 16}, {"falcon", 10}};
  for (const auto& [architecture, per_layer] : tensors_per_layer)
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_1})
      for (const bool tied : {true, false}) {
        ASSERT_TRUE(
            write_tiny_gguf(
                file.path,
                {.architecture = architecture, .type = type, .layers = 7, .tied_head = tied})
                .ok());
        const auto source = ModelSource::open(file.path);
        ASSERT_TRUE(source.ok()) << source.error().message;
        const ModelConfig& c = source.value().config();
        EXPECT_EQ(c.architecture, architecture);
        EXPECT_EQ(c.vocabulary, kTinyVocabulary);
        EXPECT_EQ(c.tied_head, tied);
        const std::size_t of_model = (tied ? 2 : 3) + (c.learned_positions ? 1 : 0) +
                                     (c.output_norm.kind == Norm::Kind::layer ? 1 : 0);
        EXPECT_EQ(tensor_names(c).size(), of_model + 7 * per_layer);
        for (const std::string& name : tensor_names(c)) {
          const auto tensor = source.value().tensor(name);
          ASSERT_TRUE(tensor.ok()) << tensor.error().message;
        }
        EXPECT_EQ(source.value().gguf_tokenizer().value().tokens.size(), kTinyVocabulary);
      }
}

TEST(TinyModel, QuantizedWeightsAreNearThePlainOnes) {
  const TemporaryFile file("quire_tiny_quantized_test.gguf");
  const auto weights = [&](DType type) {
    EXPECT_TRUE(write_tiny_gguf(file.path, {.type = type}).ok());
    const auto source = ModelSource::open(file.path);
    const TensorView t = source.value().tensor("blk.1.ffn_down.weight").value();
    std::vector<float> out(t.rows() * t.columns());
    for (std::uint64_t r = 0; r < t.rows(); ++r)
      dequantize_row(t.type, t.row(r), t.columns(), &out[r * t.columns()]);
    return out;
  };
  const std::vector<float> plain = weights(DType::f32);
  const float spread = 2.5f / std::sqrt(96.0f);  // of the numbers around zero
  const std::pair<DType, float> bounds[] = {{DType::f16, spread / 2048},
                                            {DType::bf16, spread / 256},
                                            {DType::q8_0, spread / 250},
                                            {DType::q4_1, spread / 14}};
  for (const auto& [type, bound] : bounds) {
    const std::vector<float> rounded = weights(type);
    for (std::size_t i = 0; i < plain.size(); ++i)
      ASSERT_NEAR(rounded[i], plain[i], bound) << dtype_info(type).name << " element " << i;
  }
}

TEST(TinyModel, SameOptionsSameBytes) {
  EXPECT_EQ(tiny_gguf({}).value(), tiny_gguf({}).value());
  EXPECT_NE(tiny_gguf({}).value(), tiny_gguf({.seed = 2}).value());
}

TEST(ModelSource, DigestIsThatOfTheFile) {
  const TemporaryFile file("quire_digest_test.gguf");
  ASSERT_TRUE(write_tiny_gguf(file.path, {}).ok());
  auto source = ModelSource::open(file.path);
  ASSERT_TRUE(source.ok());
  const auto before = source.value().weights_digest();
  ASSERT_TRUE(before.ok());
  std::string bytes = read_file(file.path).value();
  bytes.back() ^= 1;
  ASSERT_TRUE(write_file(file.path, bytes).ok());
  EXPECT_NE(before.value(), source.value().weights_digest().value());
  bytes.back() ^= 1;
  ASSERT_TRUE(write_file(file.path, bytes).ok());
  EXPECT_EQ(before.value(), source.value().weights_digest().value());
  // sha256sum says so of three bytes "abc" (FIPS 180-4).
  ASSERT_TRUE(write_file(file.path, "abc").ok());
  EXPECT_EQ(source.value().weights_digest().value()[0], std::byte{0xba});
  EXPECT_EQ(source.value().weights_digest().value()[31], std::byte{0xad});
}

TEST(ModelSource, UnknownMissingAndMisshapenTensorsAreNamed) {
  const TemporaryFile file("quire_shapes_test.gguf");
  ASSERT_TRUE(write_tiny_gguf(file.path, {}).ok());
  const auto source = ModelSource::open(file.path);
  ASSERT_TRUE(source.ok());
  EXPECT_THAT(source.value().tensor("blk.0.attn_z.weight").error().message,
              HasSubstr("has no tensor 'blk.0.attn_z.weight'"));
  EXPECT_THAT(source.value().tensor("blk.0.attn_q.bias").error().message,
              HasSubstr("has no tensor"));
  EXPECT_THAT(source.value().tensor("blk.9.attn_q.weight").error().message,
              HasSubstr("of 2 layers has no tensor 'blk.9.attn_q.weight'"));
  EXPECT_THAT(source.value().tensor("output.weight").error().message,
              HasSubstr("'output.weight' is missing"));
  // The same file with one number changed: the matrices no longer fit.
  std::string bytes = read_file(file.path).value();
  const std::string key = "llama.feed_forward_length";
  bytes[bytes.find(key) + key.size() + 4] = 64;
  ASSERT_TRUE(write_file(file.path, bytes).ok());
  const auto changed = ModelSource::open(file.path);
  ASSERT_TRUE(changed.ok());
  EXPECT_THAT(
      changed.value().tensor("blk.1.ffn_up.weight").error().message,
      HasSubstr("'blk.1.ffn_up.weight' has shape [96, 64], the configuration needs [64, 64]"));
}

}  // namespace
}  // namespace quire
