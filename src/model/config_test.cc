#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/json.h"
#include "model/tiny.h"
#include "tensor/gguf.h"
#include "tensor/gguf_writer.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

// SmolLM2-135M-Instruct's numbers, as its config.json has them.
Json smollm2() {
  return Json::parse(
      R"({"model_type": "llama", "attention_bias": false, "hidden_act": "silu", "hidden_size": 576,
    "intermediate_size": 1536, "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
    "num_key_value_heads": 3, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 100000,
    "tie_word_embeddings": true, "vocab_size": 49152})");
}

Json with(Json object, std::string_view changes) {
  object.update(Json::parse(changes));
  return object;
}

Result<ModelConfig> read(const Json& object) {
  return config_from_hf(object.dump(), "config.json");
}

std::string error_of(const Json& object) {
  const auto config = read(object);
  return config.ok() ? "" : config.error().message;
}

TEST(Config, SmolLm2FromHuggingFace) {
  const auto config = read(smollm2());
  ASSERT_TRUE(config.ok()) << config.error().message;
  const ModelConfig& c = config.value();
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.head_dim, 64u);
  EXPECT_EQ(c.vocabulary, 49152u);
  EXPECT_TRUE(c.tied_head);
  EXPECT_FALSE(c.per_layer[0].attn.interleaved);
  EXPECT_EQ(c.ropes.at(0).base, 100000.0f);
  EXPECT_EQ(c.per_layer.size(), 30u);
  EXPECT_EQ(c.per_layer[29].attn.window, 0u);
}

TEST(Config, MistralWindowIsRespectedAndNullIsNone) {
  const Json mistral = with(smollm2(), R"({"model_type": "mistral", "sliding_window": 4096})");
  EXPECT_EQ(read(mistral).value().per_layer[7].attn.window, 4096u);
  EXPECT_EQ(read(with(mistral, R"({"sliding_window": null})")).value().per_layer[7].attn.window,
            0u);
}

// Llama 3.2 1B: head of 64, base 500,000. Frequencies turning less than once in 8,192 tokens are
// slowed 32 times, those turning four times and more are kept.
TEST(Config, Llama3ScalingBecomesFactors) {
  constexpr std::string_view kScaling =
      R"({"rope_theta": 500000.0, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
    "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})";
  const auto config = read(with(smollm2(), kScaling));
  ASSERT_TRUE(config.ok()) << config.error().message;
  const RopeConfig& rope = config.value().ropes.at(0);
  ASSERT_EQ(rope.factors.size(), 32u);
  EXPECT_EQ(rope.linear_factor, 1.0f);
  EXPECT_EQ(rope.factors[0], 1.0f);
  EXPECT_EQ(rope.factors[14], 1.0f);
  EXPECT_NEAR(rope.factors[15], 1.65133, 1e-5);  // those between: what transformers computes
  EXPECT_NEAR(rope.factors[16], 3.29226, 1e-5);
  EXPECT_NEAR(rope.factors[17], 9.66673, 1e-5);
  EXPECT_EQ(rope.factors[18], 32.0f);
  EXPECT_EQ(rope.factors[31], 32.0f);
}

TEST(Config, NewerFilesKeepRopeInAnObjectOfItsOwn) {
  Json object =
      with(smollm2(),
           R"({"rope_parameters": {"rope_theta": 5000.0, "rope_type": "linear", "factor": 4.0}})");
  object.erase("rope_theta");
  const auto config = read(object);
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config.value().ropes.at(0).base, 5000.0f);
  EXPECT_EQ(config.value().ropes.at(0).linear_factor, 4.0f);
}

TEST(Config, OtherScalingsAreUnsupportedByName) {
  const Json object =
      with(smollm2(), R"({"rope_scaling": {"factor": 4.0, "rope_type": "dynamic"}})");
  EXPECT_THAT(error_of(object), HasSubstr("key 'rope_scaling.rope_type' is 'dynamic'"));
  EXPECT_EQ(read(object).error().code, Code::unsupported);
  EXPECT_THAT(error_of(with(smollm2(), R"({"rope_scaling": {"type": "dynamic", "factor": 4}})")),
              HasSubstr("'rope_scaling.type'"));
  EXPECT_EQ(read(with(smollm2(), R"({"rope_scaling": {"type": "linear", "factor": 4}})"))
                .value()
                .ropes[0]
                .linear_factor,
            4.0f);
}

// The 4B model's text_config says no more than this.
TEST(Config, Gemma3FillsInWhatItsMakersLeaveOut) {
  const auto config = config_from_hf(
      R"({"model_type": "gemma3", "text_config": {"hidden_size": 2560, "intermediate_size": 10240,
    "model_type": "gemma3_text", "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024}})",
      "config.json");
  ASSERT_TRUE(config.ok()) << config.error().message;
  const ModelConfig& c = config.value();
  EXPECT_EQ(c.architecture, "gemma3");
  EXPECT_EQ(c.query_heads, 8u);
  EXPECT_EQ(c.kv_heads, 4u);
  EXPECT_EQ(c.head_dim, 256u);
  EXPECT_TRUE(c.output_norm.plus_one && c.tied_head);
  EXPECT_FLOAT_EQ(c.embedding_scale, std::sqrt(2560.0f));
  for (std::uint32_t l = 0; l < 34; ++l) {
    const LayerSpec& layer = c.per_layer[l];
    for (const Norm& norm :
         {layer.pre_a, layer.post_a, layer.pre_f, layer.post_f, layer.attn.head_norm})
      EXPECT_TRUE(norm && norm.plus_one);
    EXPECT_FLOAT_EQ(layer.attn.scale, 1.0f / 16);
    const RopeConfig& rope = c.ropes[layer.attn.rope];
    EXPECT_EQ(layer.attn.window, l % 6 == 5 ? 0u : 1024u);
    EXPECT_EQ(rope.base, l % 6 == 5 ? 1e6f : 1e4f);
    EXPECT_EQ(rope.linear_factor, l % 6 == 5 ? 8.0f : 1.0f);
  }
}

TEST(Config, QwenWindowsCountOnlyWhenTurnedOn) {
  const Json off =
      with(smollm2(), R"({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": false,
    "max_window_layers": 28})");
  EXPECT_TRUE(read(off).value().per_layer[0].attn.qkv_bias);
  EXPECT_EQ(read(off).value().per_layer[29].attn.window, 0u);
  const ModelConfig on = read(with(off, R"({"use_sliding_window": true})")).value();
  EXPECT_EQ(on.per_layer[27].attn.window, 0u);
  EXPECT_EQ(on.per_layer[28].attn.window, 32u);
  const ModelConfig qwen3 = read(with(off, R"({"model_type": "qwen3", "head_dim": 128})")).value();
  EXPECT_TRUE(qwen3.per_layer[0].attn.head_norm);
  EXPECT_FALSE(qwen3.per_layer[0].attn.qkv_bias);
  EXPECT_EQ(qwen3.head_dim, 128u);
}

TEST(Config, MissingKeysAreNamed) {
  for (const char* key :
       {"model_type", "hidden_size", "intermediate_size", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "rms_norm_eps", "vocab_size"}) {
    Json object = smollm2();
    object.erase(key);
    EXPECT_THAT(error_of(object), HasSubstr("key '" + std::string(key) + "' is missing"));
  }
}

// The numbers of gpt-oss: what transformers computes.
TEST(Config, YarnBlendsFrequenciesAndScalesScores) {
  const Json object = with(smollm2(), R"({"rope_theta": 150000, "rope_scaling": {"type": "yarn",
      "factor": 32, "original_max_position_embeddings": 4096, "truncate": false}})");
  const auto config = read(object);
  ASSERT_TRUE(config.ok()) << config.error().message;
  const RopeConfig& rope = config.value().ropes[0];
  EXPECT_NEAR(rope.attention_factor, 1.34657, 1e-5);
  EXPECT_NEAR(config.value().per_layer[0].attn.scale, 1.34657 * 1.34657 / 8, 1e-5);
  EXPECT_EQ(rope.factors[8], 1.0f);  // the blend begins at 8.09 and ends at 17.40
  EXPECT_GT(rope.factors[9], 1.0f);
  EXPECT_LT(rope.factors[17], 32.0f);
  EXPECT_EQ(rope.factors[18], 32.0f);
  // With whole numbers as bounds, 8 and 18.
  const auto truncated = read(with(object, R"({"rope_scaling": {"type": "yarn", "factor": 32,
      "original_max_position_embeddings": 4096}})"));
  EXPECT_NE(truncated.value().ropes[0].factors[9], rope.factors[9]);
  EXPECT_EQ(truncated.value().ropes[0].factors[18], 32.0f);
}

// DeepSeek-V2-Lite's numbers and what V3's differ in, as their config.json have them.
Json deepseek_v2_lite() {
  return Json::parse(
      R"({"model_type": "deepseek_v2", "attention_bias": false, "first_k_dense_replace": 1, "hidden_act": "silu",
    "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2,
    "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
    "num_key_value_heads": 16, "q_lora_rank": null, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
    "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000,
    "routed_scaling_factor": 1.0, "scoring_func": "softmax", "tie_word_embeddings": false, "topk_group": 1,
    "topk_method": "greedy", "v_head_dim": 128, "vocab_size": 102400})");
}
constexpr std::string_view kAsV3 =
    R"({"model_type": "deepseek_v3", "first_k_dense_replace": 3, "hidden_size": 7168, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
    "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "moe_intermediate_size": 2048, "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
    "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"},
    "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_group": 4, "topk_method": "noaux_tc"})";

TEST(Config, DeepSeekCachesALatentRow) {
  const auto lite = read(deepseek_v2_lite());
  ASSERT_TRUE(lite.ok()) << lite.error().message;
  const Attention& a = lite.value().per_layer[5].attn;
  EXPECT_EQ(a.kv_heads, 1u);
  EXPECT_EQ(a.key_dim + a.value_dim, 576u);
  EXPECT_EQ(a.latent.query_rank, 0u);
  EXPECT_NEAR(a.scale, 0.114721, 1e-6);
  EXPECT_EQ(a.rotated_scale, 1.0f);
  EXPECT_EQ(a.interleaved, 64u);
  EXPECT_EQ(a.attended(), 16u * 128);
  const Experts& e = lite.value().per_layer[5].ffn.experts;
  EXPECT_EQ(e.scores, Experts::Scores::softmax);
  EXPECT_EQ(e.groups, 1u);
  EXPECT_EQ(e.shared_width, 2u * 1408);
  EXPECT_FALSE(e.renormalize || e.choice_bias);
  EXPECT_EQ(lite.value().per_layer[0].ffn.width, 10944u);
}

TEST(Config, DeepSeekV3AndKimiChooseGroupsByTheirTwoBest) {
  for (const char* type : {"deepseek_v3", "kimi_k2"}) {
    const auto config = read(
        with(with(deepseek_v2_lite(), kAsV3), std::string(R"({"model_type": ")") + type + "\"}"));
    ASSERT_TRUE(config.ok()) << config.error().message;
    const LayerSpec& layer = config.value().per_layer[5];
    EXPECT_EQ(layer.attn.latent.query_rank, 1536u);
    EXPECT_NEAR(layer.attn.scale, 0.135234, 1e-6);
    const Experts& e = layer.ffn.experts;
    EXPECT_EQ(e.scores, Experts::Scores::sigmoid);
    EXPECT_EQ(e.groups, 8u);
    EXPECT_EQ(e.groups_used, 4u);
    EXPECT_TRUE(e.renormalize && e.choice_bias);
    EXPECT_EQ(e.scale, 2.5f);
    EXPECT_NE(config.value().per_layer[2].ffn.width, 0u);
  }
  EXPECT_THAT(error_of(with(deepseek_v2_lite(), R"({"topk_method": "other"})")),
              HasSubstr("greedy, group_limited_greedy and noaux_tc"));
  EXPECT_THAT(error_of(with(deepseek_v2_lite(), R"({"scoring_func": "other"})")),
              HasSubstr("softmax and sigmoid"));
  EXPECT_THAT(error_of(with(deepseek_v2_lite(), R"({"attention_bias": true})")),
              HasSubstr("not supported"));
}

TEST(Config, LongRopeGoesByTheContextThatIsServed) {
  std::string list = "1";
  for (int i = 1; i < 32; ++i) list += ",1";
  const Json object = with(smollm2(), R"({"rope_scaling": {"type": "longrope", "short_factor": [)" +
                                          list + R"(], "long_factor": [2)" + list.substr(1) +
                                          R"(]}, "original_max_position_embeddings": 4096})");
  auto config = read(object);
  ASSERT_TRUE(config.ok()) << config.error().message;
  ModelConfig& c = config.value();
  EXPECT_EQ(c.ropes[0].factors[0], 2.0f);
  EXPECT_EQ(position_scheme(c), "rope long");
  EXPECT_NEAR(c.ropes[0].attention_factor, std::sqrt(1 + std::log(2) / std::log(4096)), 1e-6);
  serve_context(c, 4096);
  EXPECT_EQ(c.ropes[0].factors[0], 1.0f);
  EXPECT_EQ(position_scheme(c), "rope short");
  EXPECT_THAT(error_of(with(object, R"({"rope_scaling": {"type": "longrope", "short_factor": [1],
      "long_factor": [1]}})")),
              HasSubstr("'rope_scaling.short_factor' has 1 factors, 32 are needed"));
}

TEST(Config, NonsenseNamesItsKey) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"hidden_size": 0})", "'hidden_size' is 0"},
      {R"({"hidden_size": 2000000})", "'hidden_size' is 2000000"},
      {R"({"hidden_size": -1})", "'hidden_size' is not an unsigned integer"},
      {R"({"hidden_size": "576"})", "'hidden_size' is not an unsigned integer"},
      {R"({"hidden_size": 577})", "'hidden_size' is 577, no multiple of the 9 heads"},
      {R"({"num_key_value_heads": 2})",
       "'num_attention_heads' is 9, no multiple of 'num_key_value_heads'"},
      {R"({"num_key_value_heads": 0})", "'num_key_value_heads' is 0"},
      {R"({"num_key_value_heads": 18})", "'num_key_value_heads' is 18"},
      {R"({"head_dim": 63})", "'head_dim' makes heads of 63"},
      {R"({"num_hidden_layers": 1000000})", "'num_hidden_layers' is 1000000"},
      {R"({"rms_norm_eps": -1e-5})", "'rms_norm_eps' is -1e-05"},
      {R"({"rms_norm_eps": 1e300})", "'rms_norm_eps' is not a finite number"},
      {R"({"rope_theta": 0})", "'rope_theta' is 0"},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": 0}})", "'rope_scaling.factor' is 0"},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8}})",
       "'rope_scaling.low_freq_factor' is missing"},
      {R"({"partial_rotary_factor": 0.4})", "'partial_rotary_factor' makes 25 rotated dimensions"},
      {R"({"partial_rotary_factor": 1.5})", "'partial_rotary_factor' makes 96 rotated dimensions"},
      {R"({"attention_bias": true})", "'attention_bias' is true"},
      {R"({"hidden_act": "relu"})", "'hidden_act' is 'relu'"},
      {R"({"model_type": "phi9"})", "'model_type' is 'phi9'; there are: llama mistral"},
      {R"({"layer_types": ["full_attention"]})", "'layer_types' is not a list of 30"},
      {R"({"num_local_experts": 8})", "'num_experts_per_tok' is missing"},
      {R"({"num_local_experts": 8, "num_experts_per_tok": 9})", "'num_experts_per_tok' is 9"},
      {R"({"model_type": "granite", "num_local_experts": 8})", "'num_local_experts' is 8"},
      {R"({"tie_word_embeddings": 1})", "'tie_word_embeddings' is not a boolean"},
  };
  for (const auto& [change, message] : cases)
    EXPECT_THAT(error_of(with(smollm2(), change)), HasSubstr(message));
  EXPECT_THAT(config_from_hf("[1", "config.json").error().message,
              HasSubstr("config.json: not JSON"));
  EXPECT_THAT(config_from_hf("[1]", "config.json").error().message, HasSubstr("not a JSON object"));
}

// The metadata of a small llama GGUF, less one key, plus one of the test's.
class GgufCase {
 public:
  explicit GgufCase(std::string_view without = "") {
    const std::pair<const char*, std::uint32_t> sizes[] = {{"llama.block_count", 2},
                                                           {"llama.context_length", 64},
                                                           {"llama.embedding_length", 64},
                                                           {"llama.feed_forward_length", 96},
                                                           {"llama.attention.head_count", 4}};
    if (without != "general.architecture") writer.add("general.architecture", "llama");
    for (const auto& [key, value] : sizes)
      if (key != without) writer.add_u32(key, value);
    constexpr std::string_view kEpsilon = "llama.attention.layer_norm_rms_epsilon";
    if (kEpsilon != without) writer.add_f32(kEpsilon, 1e-5f);
    const std::vector<std::byte> zeros(10 * 64 * 4);
    constexpr std::uint64_t kShape[] = {10, 64};
    if (without != "token_embd.weight")
      writer.add_tensor("token_embd.weight", DType::f32, kShape, zeros);
  }
  Result<ModelConfig> read() const {
    const std::string bytes = writer.finish();
    TRY(const GgufFile file, GgufFile::parse(std::as_bytes(std::span(bytes)), "m.gguf"));
    return config_from_gguf(file);
  }
  std::string error() const {
    const auto config = read();
    return config.ok() ? "" : config.error().message;
  }
  GgufWriter writer;
};

TEST(Config, GgufDefaultsFollowTheOtherKeys) {
  const auto config = GgufCase().read();
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config.value().kv_heads, 4u);
  EXPECT_EQ(config.value().head_dim, 16u);
  EXPECT_EQ(config.value().vocabulary, 10u);
  EXPECT_TRUE(config.value().per_layer[0].attn.interleaved && config.value().tied_head);
}

TEST(Config, GgufMissingKeysAreNamed) {
  for (const char* key :
       {"general.architecture", "llama.block_count", "llama.context_length",
        "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon", "token_embd.weight"})
    EXPECT_THAT(GgufCase(key).error(), HasSubstr("'" + std::string(key) + "' is missing"));
}

TEST(Config, GgufScalingAndFactors) {
  GgufCase linear;
  linear.writer.add("llama.rope.scaling.type", "linear");
  linear.writer.add_f32("llama.rope.scaling.factor", 8);
  EXPECT_EQ(linear.read().value().ropes[0].linear_factor, 8.0f);
  GgufCase yarn;
  yarn.writer.add("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(yarn.error(), HasSubstr("'llama.rope.scaling.factor' is missing"));
  GgufCase dynamic;
  dynamic.writer.add("llama.rope.scaling.type", "dynamic");
  EXPECT_THAT(dynamic.error(), HasSubstr("'llama.rope.scaling.type' is 'dynamic'"));

  const float factors[8] = {1, 1, 1, 1, 2, 4, 8, 8};
  constexpr std::uint64_t kEight[] = {8}, kFour[] = {4};
  GgufCase scaled;
  scaled.writer.add_tensor("rope_freqs.weight", DType::f32, kEight,
                           std::as_bytes(std::span(factors)));
  EXPECT_EQ(scaled.read().value().ropes[0].factors[5], 4.0f);
  GgufCase wrong;
  wrong.writer.add_tensor("rope_freqs.weight", DType::f32, kFour,
                          std::as_bytes(std::span(factors).first(4)));
  EXPECT_THAT(wrong.error(), HasSubstr("'rope_freqs.weight' has shape [4], [8] is needed"));
}

TEST(Config, Gemma3GgufMayListItsLocalLayers) {
  const auto read_with = [](auto&& add) {
    GgufWriter w;
    w.add("general.architecture", "gemma3");
    for (const auto& [key, value] :
         {std::pair("gemma3.block_count", 3u), std::pair("gemma3.context_length", 64u),
          std::pair("gemma3.embedding_length", 64u), std::pair("gemma3.feed_forward_length", 96u),
          std::pair("gemma3.attention.head_count", 4u),
          std::pair("gemma3.attention.sliding_window", 8u)})
      w.add_u32(key, value);
    w.add_f32("gemma3.attention.layer_norm_rms_epsilon", 1e-6f);
    add(w);
    const std::vector<std::byte> zeros(64 * 4);
    constexpr std::uint64_t kShape[] = {1, 64};
    w.add_tensor("token_embd.weight", DType::f32, kShape, zeros);
    const std::string bytes = w.finish();
    return config_from_gguf(GgufFile::parse(std::as_bytes(std::span(bytes)), "m.gguf").value());
  };
  constexpr const char* kPattern = "gemma3.attention.sliding_window_pattern";
  const auto windows = [](const ModelConfig& c) {
    return std::vector{c.per_layer[0].attn.window, c.per_layer[1].attn.window,
                       c.per_layer[2].attn.window};
  };
  using Windows = std::vector<std::uint32_t>;
  EXPECT_EQ(windows(read_with([](GgufWriter&) {}).value()), (Windows{8, 8, 8}));
  EXPECT_EQ(windows(read_with([](GgufWriter& w) { w.add_u32(kPattern, 2); }).value()),
            (Windows{8, 0, 8}));
  EXPECT_EQ(windows(read_with([](GgufWriter& w) {
                      w.add_i32s(kPattern, std::vector{0, 1, 0});
                    }).value()),
            (Windows{0, 8, 0}));
  EXPECT_THAT(read_with([](GgufWriter& w) {
                w.add_i32s(kPattern, std::vector{0, 1});
              })
                  .error()
                  .message,
              HasSubstr("'gemma3.attention.sliding_window_pattern' has 2 entries for 3 layers"));
}

TEST(Config, GgufPartsAreUnsupportedAndExpertsAreCounted) {
  GgufCase split;
  split.writer.add_u32("split.count", 3);
  EXPECT_THAT(split.error(), HasSubstr("'split.count' is 3"));
  GgufCase experts;
  experts.writer.add_u32("llama.expert_count", 8);
  EXPECT_THAT(experts.error(), HasSubstr("'llama.expert_used_count' is missing"));
  experts.writer.add_u32("llama.expert_used_count", 2);
  ASSERT_TRUE(experts.read().ok()) << experts.error();
  const FeedForward ffn = experts.read().value().per_layer[0].ffn;
  EXPECT_EQ(ffn.experts.count, 8u);
  EXPECT_EQ(ffn.experts.used, 2u);
  EXPECT_EQ(ffn.experts.width, 96u);
}

}  // namespace
}  // namespace quire
