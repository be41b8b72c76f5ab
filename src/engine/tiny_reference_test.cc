// Tiny models of every architecture against transformers in fp32. The logits in
// tests/tiny/logits.json are of the files that write_tiny_gguf makes (tests/tiny/make_logits.py);
// those in the folder that QUIRE_TEST_TINY names were written by tests/models/make_tiny.py together
// with its models: Hugging Face folders, shards and GGUF in every type the gguf package writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "engine/client.h"
#include "engine/testing.h"
#include "model/tiny_cases.h"

namespace quire {

void PrintTo(const TinyCase& c, std::ostream* out) { *out << c.name; }

namespace {

// Random weights this large pass an error on many times over: what int8 does to these models says
// nothing of trained ones, but int16 must be far better and plain weights all but exact.
constexpr double kPlain = 1e-5, kWide = 1.5e-3, kNarrow = 0.15;

Json read_json(const std::string& path) {
  const auto text = read_file(path);
  EXPECT_TRUE(text.ok()) << text.error().message;
  return parse_json(text.value()).value();
}

// The largest difference at these positions, relative to the largest logit.
double error_of(Runtime& runtime, const std::vector<TokenId>& prompt, const Json& positions,
                const Json& expected) {
  Sequence s = std::move(runtime.empty_sequence(static_cast<std::uint32_t>(prompt.size())).value());
  const StepItem item{&s, prompt, Logits::all};
  const auto logits = Stepper(runtime).run({&item, 1});
  EXPECT_TRUE(logits.ok());
  const std::uint32_t vocabulary = runtime.config().vocabulary;
  double difference = 0, scale = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto row = expected[i].get<std::vector<double>>();
    EXPECT_EQ(row.size(), vocabulary);
    const float* got = logits.value().data() + positions[i].get<std::size_t>() * vocabulary;
    for (std::size_t t = 0; t < vocabulary; ++t) {
      const double d = std::abs(row[t] - got[t]);
      difference = d <= difference ? difference : d;  // a NaN stays
      scale = std::max(scale, std::abs(row[t]));
    }
  }
  return difference / scale;
}

class TinyReference : public ::testing::TestWithParam<TinyCase> {
 protected:
  const Json reference_ = read_json("tests/tiny/logits.json");
  const Json case_ = reference_["cases"][GetParam().name];
  const std::vector<TokenId> prompt_ = reference_["prompt"].get<std::vector<TokenId>>();

  bool has_experts_ = false, is_latent_ = false;

  double error(RuntimeOptions o) {
    o.kv_format = o.kv_format == "auto" ? "f32" : o.kv_format;
    TinyRuntime runtime(GetParam().options, o);
    has_experts_ = static_cast<bool>(runtime->config().per_layer.back().ffn.experts);
    is_latent_ = static_cast<bool>(runtime->config().per_layer.back().attn.latent);
    return error_of(*runtime, prompt_, reference_["positions"], case_["logits"]);
  }
};

TEST_P(TinyReference, LogitsAreThoseOfTransformers) {
  const bool plain = GetParam().options.type == DType::f32;
  const double wide = error({.activations = Activations::int16}), narrow = error({});
  // Latent attention rounds what three more products in a row multiply.
  EXPECT_LE(wide, plain ? kPlain : is_latent_ ? 2 * kWide : kWide);
  if (has_experts_ && !plain) return;  // what is rounded more may choose other experts
  EXPECT_LE(narrow, plain ? kPlain : kNarrow);
  if (plain) {
    EXPECT_EQ(wide, narrow);  // nothing is rounded to integers
  } else {
    EXPECT_LT(20 * wide, narrow);
  }
  if (has_experts_) return;
  // A cache in 16 bits rounds keys and values, nothing else.
  EXPECT_LE(error({.activations = Activations::int16, .kv_format = "f16"}), 1e-2);
  EXPECT_LE(error({.activations = Activations::int16, .kv_format = "bf16"}), 6e-2);
}

TEST_P(TinyReference, GreedyContinuationIsThatOfTransformers) {
  // The reference's own choice is never closer than this.
  ASSERT_GT(case_["least_margin"].get<double>(), 1e-3);
  TinyRuntime runtime(GetParam().options, {.activations = Activations::int16, .kv_format = "f32"});
  const auto expected = case_["greedy"].get<std::vector<TokenId>>();
  const auto got = client_generate(
      *runtime, prompt_,
      {.tokens_max = static_cast<std::uint32_t>(expected.size()), .ignore_end = true});
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got.value().answers[0].tokens, expected);
}

// Changes a number of a GGUF file: its key, its type, then the number.
template <class Number>
void change(std::string& file, const std::string& key, Number to) {
  const std::size_t at = file.find(key);
  ASSERT_NE(at, file.npos) << key;
  std::memcpy(file.data() + at + key.size() + 4, &to, sizeof to);
}

// What a latent model's numbers say shows in its logits: a reader that overlooks one would fail above.
TEST(TinyReferenceMutants, AreFarFromTransformers) {
  const Json reference = read_json("tests/tiny/logits.json");
  const auto prompt = reference["prompt"].get<std::vector<TokenId>>();
  for (const TinyCase& c : tiny_cases()) {
    if (c.name != "deepseek2-F32" && c.name != "deepseek3-F32") continue;
    const auto error = [&](auto mutate) {
      const TinyFile file(c.options);
      std::string bytes = read_file(file.path()).value();
      mutate(bytes);
      EXPECT_TRUE(write_file(file.path(), bytes).ok());
      const auto runtime = Runtime::open(
          file.path(),
          {.threads = 1, .kv_format = "f32", .kv_cache_bytes = std::uint64_t{16} << 20});
      EXPECT_TRUE(runtime.ok()) << runtime.error().message;
      return error_of(*runtime.value(), prompt, reference["positions"],
                      reference["cases"][c.name]["logits"]);
    };
    EXPECT_LE(error([](std::string&) {}), kPlain);
    const std::pair<const char*, float> floats[] = {{"rope.scaling.yarn_log_multiplier", 0.1f},
                                                    {"rope.scaling.factor", 3},
                                                    {"expert_weights_scale", 1},
                                                    {"rope.freq_base", 9000}};
    for (const auto& [key, to] : floats)
      EXPECT_GT(error([&](std::string& f) { change(f, std::string("deepseek2.") + key, to); }),
                1e-3)
          << c.name << ' ' << key;
    const std::pair<const char*, std::uint32_t> counts[] = {
        {"expert_gating_func", c.options.sigmoids ? 1 : 2}, {"expert_group_used_count", 4}};
    for (const auto& [key, to] : counts) {
      if (!c.options.sigmoids && to == 2) continue;  // such a file must have a bias, too
      EXPECT_GT(error([&](std::string& f) { change(f, std::string("deepseek2.") + key, to); }),
                1e-3)
          << c.name << ' ' << key;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, TinyReference, ::testing::ValuesIn(tiny_cases()),
                         [](const auto& test) {
                           std::string name = test.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// One file or folder that make_tiny.py wrote.
class TinyFolders : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(TinyFolders, LogitsAreThoseOfTransformers) {
  const char* folder = std::getenv("QUIRE_TEST_TINY");
  if (!folder)
    GTEST_SKIP() << "set QUIRE_TEST_TINY to a folder filled by tests/models/make_tiny.py";
  const auto& [model, form] = GetParam();
  const std::string base = std::filesystem::path(folder) / (std::string(model) + form);
  const bool gguf = std::filesystem::exists(base + ".gguf");
  const bool quantized = std::string_view(form).find("q") != std::string_view::npos;
  const Json reference = read_json(base + ".json");
  for (const Activations activations : {Activations::int16, Activations::int8}) {
    const auto runtime =
        Runtime::open(gguf ? base + ".gguf" : base, {.threads = 1,
                                                     .activations = activations,
                                                     .kv_format = "f32",
                                                     .kv_cache_bytes = std::uint64_t{64} << 20});
    ASSERT_TRUE(runtime.ok()) << runtime.error().message;
    const double error = error_of(*runtime.value(), reference["prompt"].get<std::vector<TokenId>>(),
                                  reference["positions"], reference["logits"]);
    const bool wide = activations == Activations::int16;
    // What is rounded may choose other experts.
    if (quantized && runtime.value()->config().per_layer.back().ffn.experts) continue;
    std::printf("%s%s %s: %.2g\n", model, form, wide ? "int16" : "int8", error);
    EXPECT_LE(error, !quantized ? kPlain : wide ? kWide : kNarrow);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Forms, TinyFolders,
    ::testing::Combine(::testing::Values("llama", "llama-rope3", "llama-linear", "mistral",
                                         "gemma3", "qwen2", "qwen3", "qwen3-yarn", "smollm3",
                                         "granite", "phi3", "phi3-long", "olmo2", "glm4", "gemma2",
                                         "gpt2", "starcoder2", "falcon", "falcon-groups", "mixtral",
                                         "qwen2moe", "qwen3moe", "glm4moe", "gpt-oss", "deepseek2",
                                         "deepseek2-lite", "deepseek2-old", "deepseek3"),
                       ::testing::Values("", "-shards", "-f32", "-f16", "-bf16", "-q8_0", "-q4_0",
                                         "-q4_1", "-q5_0", "-q5_1")),
    [](const auto& test) {
      std::string name = std::string(std::get<0>(test.param)) +
                         (*std::get<1>(test.param) ? std::get<1>(test.param) : "_folder");
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

}  // namespace
}  // namespace quire
