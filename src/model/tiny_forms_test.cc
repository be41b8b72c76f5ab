// The two forms of a model are one model: tests/models/make_tiny.py writes each tiny model as a
// Hugging Face folder, as BF16 shards and as GGUF; configuration and weights must come out the
// same. Skipped unless QUIRE_TEST_TINY names its folder.
#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "base/half.h"
#include "model/arch/arch.h"
#include "model/weights_source.h"

namespace quire {
namespace {

constexpr const char* kModels[] = {
    "llama",      "llama-rope3", "llama-linear", "mistral", "gemma3",       "qwen2", "qwen3",
    "qwen3-yarn", "smollm3",     "granite",      "phi3",    "phi3-long",    "olmo2", "glm4",
    "gemma2",     "gpt2",        "starcoder2",   "falcon",  "falcon-groups"};

std::vector<float> floats_of(const ModelSource& source, const std::string& name) {
  const auto found = source.tensor(name);
  EXPECT_TRUE(found.ok()) << found.error().message;
  if (!found.ok()) return {};
  const TensorView& t = found.value();
  std::vector<float> out(t.rows() * t.columns());
  for (std::uint64_t r = 0; r < t.rows(); ++r)
    dequantize_row(t.type, t.row(r), t.columns(), &out[r * t.columns()]);
  const bool is_norm = name.ends_with("norm.weight");
  if (is_norm && source.config().output_norm.plus_one)
    for (float& x : out) x += 1;
  return out;
}

// Row `o` of wq or wk as stored for pairs (i, i + d/2), out of rows stored for pairs (2i, 2i + 1).
std::size_t interleaved_row(std::size_t o, std::size_t d) {
  return o - o % d + (o % d < d / 2 ? 2 * (o % d) : 2 * (o % d - d / 2) + 1);
}

// But for how the two files store rows and norms.
void expect_same_layer(const LayerSpec& a, const LayerSpec& b) {
  for (const auto& norm :
       {&LayerSpec::pre_a, &LayerSpec::post_a, &LayerSpec::pre_f, &LayerSpec::post_f}) {
    EXPECT_EQ((a.*norm).kind, (b.*norm).kind);
    EXPECT_EQ((a.*norm).epsilon, (b.*norm).epsilon);
  }
  EXPECT_EQ(a.attn.head_norm.kind, b.attn.head_norm.kind);
  EXPECT_EQ(a.attn.query_heads, b.attn.query_heads);
  EXPECT_EQ(a.attn.kv_heads, b.attn.kv_heads);
  EXPECT_EQ(a.attn.key_dim, b.attn.key_dim);
  EXPECT_EQ(a.attn.value_dim, b.attn.value_dim);
  EXPECT_EQ(a.attn.scale, b.attn.scale);
  EXPECT_EQ(a.attn.window, b.attn.window);
  EXPECT_EQ(a.attn.rope, b.attn.rope);
  EXPECT_EQ(a.attn.qkv_bias, b.attn.qkv_bias);
  EXPECT_EQ(a.ffn.activation, b.ffn.activation);
  EXPECT_EQ(a.ffn.width, b.ffn.width);
}

void expect_same_config(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.architecture, b.architecture);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.vocabulary, b.vocabulary);
  EXPECT_EQ(a.context, b.context);
  EXPECT_EQ(a.embedding_scale, b.embedding_scale);
  EXPECT_EQ(a.tied_head, b.tied_head);
  ASSERT_EQ(a.ropes.size(), b.ropes.size());
  for (std::size_t i = 0; i < a.ropes.size(); ++i) {
    EXPECT_EQ(a.ropes[i].base, b.ropes[i].base);
    EXPECT_EQ(a.ropes[i].dimensions, b.ropes[i].dimensions);
    EXPECT_EQ(a.ropes[i].linear_factor, b.ropes[i].linear_factor);
    ASSERT_EQ(a.ropes[i].factors.size(), b.ropes[i].factors.size());
    for (std::size_t k = 0; k < a.ropes[i].factors.size(); ++k)
      EXPECT_FLOAT_EQ(a.ropes[i].factors[k], b.ropes[i].factors[k]);
  }
  for (std::uint32_t l = 0; l < a.layers; ++l) {
    SCOPED_TRACE("layer " + std::to_string(l));
    expect_same_layer(a.per_layer[l], b.per_layer[l]);
  }
}

class TinyForms : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("QUIRE_TEST_TINY");
    if (!folder)
      GTEST_SKIP() << "set QUIRE_TEST_TINY to a folder filled by tests/models/make_tiny.py";
    folder_ = folder;
  }
  ModelSource open(const std::string& suffix) {
    auto opened = ModelSource::open((folder_ / (GetParam() + suffix)).string());
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return std::move(opened.value());
  }
  std::filesystem::path folder_;
};

TEST_P(TinyForms, FolderAndGgufAreOneModel) {
  const ModelSource folder = open(""), gguf = open("-f32.gguf");
  expect_same_config(folder.config(), gguf.config());
  const ModelConfig& c = gguf.config();
  for (const std::string& name : tensor_names(c)) {
    const std::vector<float> a = floats_of(folder, name), b = floats_of(gguf, name);
    ASSERT_EQ(a.size(), b.size()) << name;
    const bool permuted = c.per_layer[0].attn.interleaved == c.head_dim &&
                          (name.find("attn_q.") != name.npos || name.find("attn_k.") != name.npos);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::size_t row = i / c.hidden;
      const std::size_t j =
          permuted ? interleaved_row(row, c.head_dim) * c.hidden + i % c.hidden : i;
      ASSERT_EQ(a[i], b[j]) << name << " element " << i;
    }
  }
  const HfTokenizer texts = folder.hf_tokenizer().value();
  EXPECT_NE(texts.tokenizer_json.find("\"BPE\""), std::string::npos);
  EXPECT_FALSE(texts.tokenizer_config_json.empty());
  EXPECT_FALSE(folder.gguf_tokenizer().ok());
  EXPECT_FALSE(gguf.hf_tokenizer().ok());
}

TEST_P(TinyForms, ShardsHoldTheRoundedWeights) {
  const ModelSource folder = open(""), shards = open("-shards");
  expect_same_config(folder.config(), shards.config());
  EXPECT_NE(folder.weights_digest().value(), shards.weights_digest().value());
  // GPT-2's folder has the masks of older versions, too.
  EXPECT_LE(shards.tensor_bytes() * 2, folder.tensor_bytes());
  for (const std::string& name : tensor_names(folder.config())) {
    if (name.find("norm") != name.npos) continue;  // one may have been added after rounding
    const std::vector<float> a = floats_of(folder, name), b = floats_of(shards, name);
    ASSERT_EQ(a.size(), b.size()) << name;
    for (std::size_t i = 0; i < a.size(); ++i)
      ASSERT_EQ(bf16_to_f32(f32_to_bf16(a[i])), b[i]) << name << " element " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TinyForms, ::testing::ValuesIn(kModels), [](const auto& model) {
  std::string name = model.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace quire
