#include "model/adapter/adapter_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "model/adapter/adapter.h"
#include "model/tiny.h"
#include "model/tiny_adapter.h"
#include "model/weights_source.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

std::span<const std::byte> bytes_in(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// A model's configuration, and a folder of the test's own.
class AdapterFiles : public ::testing::Test {
 protected:
  AdapterFiles() {
    std::filesystem::create_directories(folder_);
    EXPECT_TRUE(write_tiny_gguf(folder_ + "/model.gguf", {.layers = 2}).ok());
    config_ = ModelSource::open(folder_ + "/model.gguf").value().config();
  }
  ~AdapterFiles() override { std::filesystem::remove_all(folder_); }

  Result<AdapterFile> with(std::string_view key, const Json& value) {
    const TinyAdapter made = tiny_adapter({}, config_);
    Json json = parse_json(made.config).value();
    json[std::string(key)] = value;
    tensors_ = made.tensors;
    return parse_peft(json.dump(), bytes_in(tensors_), "adapter");
  }
  // With one text of the tensors' header replaced by another of the same length.
  Result<AdapterFile> renamed(std::string_view from, std::string_view to) {
    const TinyAdapter made = tiny_adapter({}, config_);
    tensors_ = made.tensors;
    const std::size_t at = tensors_.find(from);
    EXPECT_NE(at, tensors_.npos);
    tensors_.replace(at, from.size(), to);
    return parse_peft(made.config, bytes_in(tensors_), "adapter");
  }

  const std::string folder_ =
      ::testing::TempDir() + "quire_adapter_test_" + std::to_string(::getpid());
  ModelConfig config_;
  std::string tensors_;
};

TEST_F(AdapterFiles, PatternsMeanWhatPeftMatches) {
  const char* module = "model.layers.1.mlp.down_proj";
  for (const char* key : {"down_proj", "mlp.down_proj", "layers.1.mlp.down_proj",
                          "model.layers.1.mlp.down_proj", "^model.layers.1.mlp.down_proj",
                          "mlp\\.down_proj", "layers.1.mlp.down_proj$", "mlp.down.proj"})
    EXPECT_TRUE(pattern_means(key, module).value()) << key;
  for (const char* key : {"own_proj", "up_proj", "layers.11.mlp.down_proj", "^down_proj",
                          "mlp\\.down\\.proj", "x.model.layers.1.mlp.down_proj", "down_proj.x"})
    EXPECT_FALSE(pattern_means(key, module).value()) << key;
  for (const char* key : {"layers.[01].mlp", ".*down_proj", "(a|b)", "x{2}", "a+"})
    EXPECT_FALSE(pattern_means(key, module).ok()) << key;
}

TEST_F(AdapterFiles, ScalesAreThoseOfPeft) {
  const auto scale = [&](const TinyAdapterOptions& o, std::string_view end) {
    const TinyAdapter made = tiny_adapter(o, config_);
    const auto file = parse_peft(made.config, bytes_in(made.tensors), "adapter");
    EXPECT_TRUE(file.ok()) << file.error().message;
    for (const AdapterPair& pair : file.value().pairs)
      if (pair.module.ends_with(end)) return pair.scale;
    return -1.0f;
  };
  EXPECT_EQ(scale({}, "0.self_attn.q_proj"), 4.0f);
  EXPECT_EQ(scale({.rank = 16, .rslora = true}, "q_proj"), 4.0f);
  EXPECT_EQ(scale({.ranks = {{"q_proj", 2}}}, "q_proj"), 8.0f);
  EXPECT_EQ(scale({.alphas = {{"layers.1.self_attn.v_proj", 2.0f}}}, "1.self_attn.v_proj"), 0.5f);
  EXPECT_EQ(scale({.alphas = {{"layers.1.self_attn.v_proj", 2.0f}}}, "0.self_attn.v_proj"), 4.0f);
}

TEST_F(AdapterFiles, WhatIsNotComputedIsRefusedByName) {
  const std::pair<const char*, Json> refused[] = {
      {"use_dora", true},
      {"bias", "all"},
      {"lora_bias", true},
      {"modules_to_save", Json::array({"lm_head"})},
      {"target_parameters", Json::array({"mlp.experts.gate_up_proj"})},
      {"trainable_token_indices", Json::array({1})},
      {"layer_replication", Json::array({Json::array({0, 2})})},
      {"use_qalora", true},
      {"init_lora_weights", "pissa_niter_4"},
      {"peft_type", "IA3"},
      {"rank_pattern", {{"layers.[0-9].q_proj", 4}}}};
  for (const auto& [key, value] : refused) {
    const auto file = with(key, value);
    ASSERT_FALSE(file.ok()) << key;
    EXPECT_EQ(file.error().code, Code::unsupported) << key;
    EXPECT_THAT(file.error().message, HasSubstr(key));
  }
  EXPECT_THAT(
      renamed("layers.0.self_attn.q_proj.lora_A.weight", "layers.0.embed_tok.lora_embedding_A.xxx")
          .error()
          .message,
      HasSubstr("adapters of embeddings"));
}

TEST_F(AdapterFiles, WhatMakesNoSenseIsAnError) {
  const std::pair<const char*, Json> wrong[] = {{"r", 3},
                                                {"r", -1},
                                                {"r", "four"},
                                                {"lora_alpha", 0},
                                                {"lora_alpha", Json::array()},
                                                {"use_rslora", 7},
                                                {"rank_pattern", 4},
                                                {"rank_pattern", {{"q_proj", 5}}},
                                                {"alpha_pattern", {{"v_proj", "x"}}},
                                                {"alora_invocation_tokens", Json::array()},
                                                {"alora_invocation_tokens", "text"},
                                                {"alora_invocation_tokens", Json::array({-4})}};
  for (const auto& [key, value] : wrong) {
    const auto file = with(key, value);
    ASSERT_FALSE(file.ok()) << key << " " << value.dump();
    EXPECT_THAT(file.error().message, HasSubstr("adapter"));
  }
  EXPECT_FALSE(renamed("lora_A.weight", "lora_C.weight").ok());
  EXPECT_FALSE(
      renamed("layers.0.self_attn.q_proj.lora_A", "layers.1.self_attn.q_proj.lora_A").ok());
  EXPECT_FALSE(parse_peft("{", {}, "adapter").ok());
  EXPECT_FALSE(parse_peft("[1]", {}, "adapter").ok());
}

TEST_F(AdapterFiles, AnotherModelsAdapterIsRefused) {
  ModelConfig other = config_;
  ASSERT_TRUE(write_tiny_gguf(folder_ + "/other.gguf", {.layers = 1, .hidden = 128}).ok());
  other = ModelSource::open(folder_ + "/other.gguf").value().config();
  ASSERT_TRUE(write_tiny_adapter(folder_ + "/a", {}, config_).ok());
  const auto wrong = Adapter::load(folder_ + "/a", other, true, 1 << 24);
  ASSERT_FALSE(wrong.ok());
  EXPECT_THAT(wrong.error().message, HasSubstr("another model"));
  const auto small = Adapter::load(folder_ + "/a", config_, true, 1000);
  ASSERT_FALSE(small.ok());
  EXPECT_THAT(small.error().message, HasSubstr("--lora-memory"));
  EXPECT_TRUE(Adapter::load(folder_ + "/a", config_, true, 1 << 24).ok());
  std::filesystem::remove(folder_ + "/a/adapter_model.safetensors");
  EXPECT_EQ(Adapter::load(folder_ + "/a", config_, true, 1 << 24).error().code, Code::not_found);
  ASSERT_TRUE(write_file(folder_ + "/a/adapter_model.bin", "x").ok());
  EXPECT_THAT(Adapter::load(folder_ + "/a", config_, true, 1 << 24).error().message,
              HasSubstr("pickle"));
}

// GGUF files of Llama have q and k in another order of rows.
TEST_F(AdapterFiles, BothFormsPackTheSameMatrices) {
  const TinyAdapterOptions options{.modules = {"q_proj", "k_proj", "v_proj", "down_proj"},
                                   .invocation = {7, 8}};
  ASSERT_TRUE(write_tiny_adapter(folder_ + "/a", options, config_).ok());
  ASSERT_TRUE(write_file(folder_ + "/a.gguf", tiny_gguf_adapter(options, config_)).ok());
  for (const bool base_is_gguf : {true, false}) {
    ModelConfig config = config_;
    if (!base_is_gguf)
      for (LayerSpec& layer : config.per_layer) layer.attn.interleaved = 0;
    const auto peft = Adapter::load(folder_ + "/a", config, base_is_gguf, 1 << 24).value(),
               gguf = Adapter::load(folder_ + "/a.gguf", config, base_is_gguf, 1 << 24).value();
    EXPECT_NE(peft->digest(), gguf->digest());
    EXPECT_TRUE(std::ranges::equal(peft->invocation(), gguf->invocation()));
    std::size_t pairs = 0;
    for (std::uint32_t l = 0; l < config.layers; ++l)
      for (std::size_t i = 0; i < kAdaptedCount; ++i) {
        const LowRank &a = peft->layer(l)[i], &b = gguf->layer(l)[i];
        ASSERT_EQ(static_cast<bool>(a), static_cast<bool>(b));
        if (!a) continue;
        ++pairs;
        EXPECT_EQ(a.scale, b.scale);
        for (const auto& [x, y] : {std::pair(a.a, b.a), std::pair(a.b, b.b)})
          EXPECT_EQ(std::memcmp(x.data, y.data, packed_bytes(x.type, x.outputs, x.inputs)), 0)
              << "layer " << l << " linear " << i;
      }
    EXPECT_EQ(pairs, 8u);
  }
}

TEST_F(AdapterFiles, SetsAreNamedByAdaptersOrderAndScale) {
  const auto one = Adapter::random(config_, 4, 1).value(),
             two = Adapter::random(config_, 4, 2).value(),
             late = Adapter::random(config_, 4, 3, 0.02f, {5, 6}).value();
  const auto digest = [](std::vector<AdapterSet::Part> parts) {
    return AdapterSet::make(std::move(parts)).value()->digest();
  };
  const std::vector<std::string> all = {
      digest({{one}}),       digest({{two}}),        digest({{one}, {two}}), digest({{two}, {one}}),
      digest({{one, 0.5f}}), digest({{one}, {one}}), digest({{late}})};
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size());
  EXPECT_EQ(digest({{one}}), all[0]);
  EXPECT_FALSE(AdapterSet::make({}).ok());
  EXPECT_FALSE(AdapterSet::make({{one}, {late}}).ok());
  const auto set = AdapterSet::make({{late}}).value();
  EXPECT_EQ(set->begins_at(std::vector<TokenId>{5, 6, 1, 5, 6, 2}), 3u);
  EXPECT_EQ(set->begins_at(std::vector<TokenId>{5, 1, 6}), AdapterSet::kNever);
}

}  // namespace
}  // namespace quire
