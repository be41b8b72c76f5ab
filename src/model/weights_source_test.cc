#include "model/weights_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "model/tiny.h"

namespace quire {
namespace {

// The real models, where this machine has them: named by an environment variable or in the cache
// folder.
std::string model_path(const char* variable, const std::string& file_name) {
  if (const char* path = std::getenv(variable)) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path base =
      cache ? cache : std::filesystem::path(home ? home : "") / ".cache";
  const std::filesystem::path path = base / "quire" / "models" / file_name;
  return std::filesystem::exists(path) ? path.string() : "";
}

void expect_all_tensors(const ModelSource& source, std::initializer_list<const char*> per_layer) {
  for (std::uint32_t l = 0; l < source.config().layers; ++l)
    for (const char* name : per_layer) {
      const auto tensor = source.tensor("blk." + std::to_string(l) + "." + name);
      EXPECT_TRUE(tensor.ok()) << tensor.error().message;
    }
}

TEST(ModelSource, SmolLm2IsWhatItsMakersSay) {
  const std::string path = model_path("QUIRE_TEST_MODEL", "smollm2-135m-instruct-q4_1.gguf");
  if (path.empty()) GTEST_SKIP() << "set QUIRE_TEST_MODEL to the SmolLM2-135M GGUF file";
  auto opened = ModelSource::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const ModelSource source = std::move(opened.value());
  const ModelConfig& c = source.config();
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.layers, 30u);
  EXPECT_EQ(c.hidden, 576u);
  EXPECT_EQ(c.feed_forward, 1536u);
  EXPECT_EQ(c.query_heads, 9u);
  EXPECT_EQ(c.kv_heads, 3u);
  EXPECT_EQ(c.head_dim, 64u);
  EXPECT_EQ(c.vocabulary, 49152u);
  EXPECT_EQ(c.context, 8192u);
  EXPECT_FLOAT_EQ(c.output_norm.epsilon, 1e-5f);
  EXPECT_FLOAT_EQ(c.per_layer[0].attn.scale, 0.125f);
  EXPECT_TRUE(c.tied_head);
  EXPECT_TRUE(c.per_layer[0].attn.interleaved);
  ASSERT_EQ(c.ropes.size(), 1u);
  EXPECT_EQ(c.ropes[0].base, 100000.0f);
  EXPECT_EQ(c.ropes[0].dimensions, 64u);
  expect_all_tensors(source, {"attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight",
                              "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight",
                              "ffn_up.weight", "ffn_down.weight"});
  const auto tokenizer = source.gguf_tokenizer();
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
  const GgufTokenizer& t = tokenizer.value();
  EXPECT_EQ(t.model, "gpt2");
  EXPECT_EQ(t.pre, "smollm");
  EXPECT_EQ(t.tokens.size(), 49152u);
  EXPECT_EQ(static_cast<std::uint64_t>(std::distance(t.tokens.begin(), t.tokens.end())), 49152u);
  EXPECT_EQ(*t.tokens.begin(), "<|endoftext|>");
  EXPECT_EQ(*std::next(t.tokens.begin(), 2), "<|im_end|>");
  EXPECT_EQ(t.types[2], 3);  // control
  EXPECT_EQ(t.eos, 2u);
  EXPECT_EQ(t.eot, std::nullopt);
  EXPECT_EQ(t.add_bos, false);
  EXPECT_TRUE(t.chat_template.starts_with("{% for message in messages %}"));
}

TEST(ModelSource, Gemma3HasLocalAndGlobalLayers) {
  const std::string path = model_path("QUIRE_TEST_GEMMA", "gemma-3-270m-q4_k_m.gguf");
  if (path.empty()) GTEST_SKIP() << "set QUIRE_TEST_GEMMA to the Gemma 3 270M GGUF file";
  auto opened = ModelSource::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const ModelSource source = std::move(opened.value());
  const ModelConfig& c = source.config();
  EXPECT_EQ(c.architecture, "gemma3");
  EXPECT_EQ(c.layers, 18u);
  EXPECT_EQ(c.head_dim, 256u);
  EXPECT_EQ(c.kv_heads, 1u);
  EXPECT_EQ(c.vocabulary, 262144u);
  EXPECT_TRUE(c.tied_head);
  EXPECT_FALSE(c.output_norm.plus_one);
  EXPECT_FLOAT_EQ(c.embedding_scale, std::sqrt(640.0f));
  for (std::uint32_t l = 0; l < c.layers; ++l) {
    const LayerSpec& layer = c.per_layer[l];
    EXPECT_TRUE(layer.pre_a && layer.post_a && layer.pre_f && layer.post_f && layer.attn.head_norm);
    EXPECT_FALSE(layer.pre_a.plus_one || layer.attn.interleaved || layer.attn.qkv_bias);
    EXPECT_EQ(layer.ffn.activation, Activation::gelu);
    EXPECT_FLOAT_EQ(layer.attn.scale, 1.0f / 16);
    EXPECT_EQ(layer.attn.window, l % 6 == 5 ? 0u : 512u) << "layer " << l;
    EXPECT_EQ(c.ropes[layer.attn.rope].base, l % 6 == 5 ? 1e6f : 1e4f) << "layer " << l;
  }
  expect_all_tensors(source,
                     {"attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight",
                      "post_ffw_norm.weight", "ffn_norm.weight", "ffn_down.weight"});
  EXPECT_EQ(source.gguf_tokenizer().value().scores.size(), 262144u);
}

TEST(ModelSource, RandomWeightsFollowFromTheConfigurationAlone) {
  const std::string path = testing::TempDir() + "random_config.json";
  std::ofstream(path) << R"({"model_type": "llama", "vocab_size": 320, "hidden_size": 64,
      "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
      "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
      "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false})";
  auto opened = ModelSource::open_random(path), again = ModelSource::open_random(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const ModelSource& source = opened.value();
  EXPECT_TRUE(source.is_random());
  expect_all_tensors(source, {"attn_norm.weight", "attn_q.weight", "attn_k.weight", "attn_v.weight",
                              "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight",
                              "ffn_up.weight", "ffn_down.weight"});
  const auto up = source.tensor("blk.1.ffn_up.weight"),
             gate = source.tensor("blk.1.ffn_gate.weight"),
             same = again.value().tensor("blk.1.ffn_up.weight");
  ASSERT_TRUE(up.ok() && gate.ok() && same.ok());
  EXPECT_EQ(up.value().shape, (std::vector<std::uint64_t>{96, 64}));
  EXPECT_TRUE(std::ranges::equal(up.value().data, same.value().data));
  EXPECT_FALSE(std::ranges::equal(up.value().data, gate.value().data));
  std::vector<float> row(64);
  double sum = 0, squares = 0;
  for (std::uint64_t r = 0; r < 96; ++r) {
    dequantize_row(DType::bf16, up.value().row(r), 64, row.data());
    for (const float x : row) sum += x, squares += x * x;
  }
  EXPECT_NEAR(sum / 6144, 0, 0.001);
  EXPECT_NEAR(std::sqrt(squares / 6144), kRandomSpread, 0.1 * kRandomSpread);
  dequantize_row(DType::bf16, source.tensor("blk.0.attn_norm.weight").value().row(0), 64,
                 row.data());
  EXPECT_TRUE(std::ranges::all_of(row, [](float x) { return x == 1; }));
  EXPECT_FALSE(source.tensor("blk.0.attn_q_norm.weight").ok());
}

// Older files of DeepSeek have keys and values of the latent rows as one tensor, row by row.
TEST(ModelSource, LatentKeysAndValuesComeOutOfOneTensor) {
  const std::string path = testing::TempDir() + "quire_one_kv_b.gguf";
  for (const DType type : {DType::f32, DType::bf16, DType::q8_0}) {
    const TinyOptions options{
        .architecture = "deepseek2", .type = type, .query_rank = 96, .one_kv_b = true};
    ASSERT_TRUE(write_tiny_gguf(path, options).ok());
    const GgufFile file = std::move(GgufFile::open(path).value());
    auto opened = ModelSource::open(path);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const Attention& a = opened.value().config().per_layer[1].attn;
    const std::uint32_t plain = a.latent.plain_dim, out = a.latent.out_dim, latent = a.value_dim;
    const TensorView& whole = *file.find("blk.1.attn_kv_b.weight");
    const TensorView keys = opened.value().tensor("blk.1.attn_k_b.weight").value(),
                     values = opened.value().tensor("blk.1.attn_v_b.weight").value();
    EXPECT_EQ(keys.type, type == DType::q8_0 ? DType::f32 : type);
    const auto row = [](const TensorView& t, std::uint64_t r) {
      std::vector<float> numbers(t.columns());
      dequantize_row(t.type, t.row(r), numbers.size(), numbers.data());
      return numbers;
    };
    for (std::uint32_t h = 0; h < a.query_heads; ++h) {
      for (std::uint32_t r = 0; r < plain; ++r)
        for (std::uint32_t d = 0; d < latent; d += 31)
          ASSERT_EQ(row(keys, h * latent + d)[r], row(whole, h * (plain + out) + r)[d]);
      for (std::uint32_t r = 0; r < out; ++r)
        ASSERT_EQ(row(values, h * out + r), row(whole, h * (plain + out) + plain + r));
    }
    const std::vector<std::byte> bytes(keys.data.begin(), keys.data.end());
    ASSERT_TRUE(opened.value().detach().ok());
    const TensorView later = opened.value().tensor("blk.1.attn_k_b.weight").value();
    EXPECT_EQ(opened.value().read_tensor(later).value(), bytes);
  }
}

// A file that somebody truncates, overwrites or replaces after it was loaded.
TEST(ModelSource, WhatBecomesOfTheFileAfterwardsChangesNothing) {
  const std::string path = testing::TempDir() + "quire_detached.gguf";
  ASSERT_TRUE(write_tiny_gguf(path, {}).ok());
  auto opened = ModelSource::open(path);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  ModelSource& source = opened.value();
  const TensorView before = source.tensor("blk.0.attn_output.weight").value();
  const std::vector<std::byte> bytes(before.data.begin(), before.data.end());
  ASSERT_TRUE(source.detach().ok());
  const TensorView after = source.tensor("blk.0.attn_output.weight").value();
  EXPECT_EQ(after.type, before.type);
  EXPECT_EQ(after.shape, before.shape);
  EXPECT_EQ(source.read_tensor(after).value(), bytes);
  EXPECT_FALSE(source.gguf_tokenizer().ok());  // its strings lay in the file
  EXPECT_FALSE(source.change());

  const auto said = [&] { return source.change().value_or(""); };
  std::filesystem::rename(path, path + ".away");
  EXPECT_NE(said().find("taken away"), std::string::npos);
  EXPECT_EQ(source.read_tensor(after).value(), bytes);
  std::filesystem::copy_file(path + ".away", path);
  EXPECT_NE(said().find("replaced"), std::string::npos);
  EXPECT_EQ(source.read_tensor(after).value(), bytes);
  std::filesystem::rename(path + ".away", path);
  EXPECT_EQ(said(), "");
  std::filesystem::resize_file(path, 100);
  EXPECT_NE(said().find("now has 100"), std::string::npos);
  EXPECT_FALSE(source.read_tensor(after).ok());
  std::filesystem::remove(path);
}

TEST(ModelSource, AFileThatChangesWhileItIsLoadedIsRefused) {
  const std::string path = testing::TempDir() + "quire_changing.gguf";
  ASSERT_TRUE(write_tiny_gguf(path, {}).ok());
  auto opened = ModelSource::open(path);
  ASSERT_TRUE(opened.ok());
  std::ofstream(path, std::ios::app) << "more";
  const Status detached = opened.value().detach();
  ASSERT_FALSE(detached.ok());
  EXPECT_NE(detached.error().message.find("while it was being loaded"), std::string::npos);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace quire
