// Lossy formats end to end, on tiny models: the answer does not depend on how it was made, and the
// cache holds what the plan says.
#include <gtest/gtest.h>

#include "base/sanitized.h"
#include "engine/plan.h"
#include "engine/selftest.h"
#include "engine/testing.h"

namespace quire {
namespace {

struct Case {
  const char* name;
  TinyOptions model;
  RuntimeOptions options;
};

TinyOptions llama() { return {.type = DType::q8_0, .layers = 3, .head_dim = 64}; }
TinyOptions gemma() {
  return {.architecture = "gemma3", .type = DType::f16, .layers = 7, .head_dim = 32, .window = 40};
}

TinyOptions deepseek() {
  return {.architecture = "deepseek2",
          .type = DType::q8_0,
          .layers = 3,
          .rope_dimensions = 32,
          .query_rank = 96};
}

// Its numbers are not this model's: what is the same stays the same.
[[maybe_unused]] Calibration made_up(const Codec& codec, const TinyOptions& model) {
  Calibration c = plain_calibration(codec, model.head_dim);
  c.lanes.resize(std::size_t{model.layers} * model.kv_heads * 2, c.lanes[0]);
  for (std::size_t i = 0; i < c.lanes.size(); ++i)  // no two lanes alike
    for (auto* part : {&c.lanes[i].range, &c.lanes[i].centroids})
      for (float& x : *part) x *= 0.5f + 0.1f * static_cast<float>(i);
  return c;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto quick = [](std::string_view f) {
    return f == "int8" || f == "hadamard-int3" || f == "kivi-2";
  };
  for (const Format* f : formats())
    if (!f->exact && (!kSanitized || quick(f->name))) {
      all.push_back({f->name.data(), llama(), {.kv_format = std::string(f->name)}});
      if (f->keys->calibrated)
        all.back().options.calibrations = {made_up(*f->keys, all.back().model)};
    }
  all.push_back({"a window", gemma(), {.kv_format = "int8"}});
  all.push_back(
      {"a short window", {.layers = 2, .head_dim = 32, .window = 20}, {.kv_format = "q4_0"}});
  all.push_back({"a pair", llama(), {.kv_format = "int8/hadamard-int4"}});
  all.push_back({"half exact", llama(), {.kv_format = "f16/q4_1"}});
  all.push_back({"recent", gemma(), {.kv_format = "hadamard-int4", .kv_recent_exact = 40}});
  all.push_back({"sinks", llama(), {.kv_format = "kivi-2", .kv_sinks = 4}});
  all.push_back(
      {"recent, sinks, layers",
       llama(),
       {.kv_format = "kivi-4", .kv_recent_exact = 64, .kv_sinks = 40, .kv_skip_layers = {0, 2}}});
  all.push_back({"small blocks", gemma(), {.kv_format = "hadamard-int2", .tokens_per_block = 16}});
  all.push_back({"large blocks", llama(), {.kv_format = "int8", .tokens_per_block = 64}});
  all.push_back({"latent rows", deepseek(), {.kv_format = "int8"}});
  all.push_back({"latent rows, recent, sinks",
                 deepseek(),
                 {.kv_format = "hadamard-int4", .kv_recent_exact = 40, .kv_sinks = 4}});
  all.push_back({"latent rows, half exact",
                 deepseek(),
                 {.kv_format = "f16/q8_0", .kv_skip_layers = {1}, .tokens_per_block = 16}});
  return all;
}

class Lossy : public ::testing::TestWithParam<Case> {};

TEST_P(Lossy, AnswersAreTheSameHoweverTheyAreMade) {
  const TinyFile file(GetParam().model);
  RuntimeOptions options = GetParam().options;
  options.threads = 2;
  const auto same = selftest(file.path(), options, false, [](const SelftestCheck& c) {
    EXPECT_TRUE(c.ok) << c.name << ": " << c.detail;
  });
  ASSERT_TRUE(same.ok()) << same.error().message;
  EXPECT_TRUE(same.value());
}

TEST_P(Lossy, TheCacheHoldsWhatThePlanSays) {
  TinyRuntime runtime(GetParam().model, GetParam().options);
  Sequence s = std::move(runtime->empty_sequence(400).value());
  const std::vector<TokenId> text(333, 'a');
  for (std::uint32_t at = 0; at < text.size();) {
    const std::uint32_t count = std::min<std::uint32_t>(1 + at / 7, text.size() - at);
    const StepItem item{&s, std::span(text).subspan(at, count), Logits::last};
    ASSERT_TRUE(Stepper(*runtime).run({&item, 1}).ok());
    at += count;
    EXPECT_EQ(runtime->cache().stats().referenced_bytes, sequence_bytes(runtime->geometry(), at));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Lossy, ::testing::ValuesIn(cases()), [](const auto& param) {
  std::string name;
  for (const char c : std::string_view(param.param.name))
    name += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

// Two requests in one step, each in its own format, read what they would read alone.
TEST(LossyRuntime, FormatsShareAStep) {
  TinyRuntime runtime(llama());
  const std::vector<TokenId> text = byte_tokens(
      "keys and values, each in a way of its own, side by "
      "side in one cache and one step");
  const StoragePolicy ways[] = {find_format("f16").value(), find_format("int8").value(),
                                find_format("kivi-2").value()};
  std::vector<std::vector<float>> alone;
  std::vector<Sequence> sequences;
  std::vector<StepItem> items;
  for (const StoragePolicy& way : ways) {
    const RootId root = runtime->tenant_root("", &way).value();
    for (const bool together : {false, true}) {
      Sequence s = std::move(
          runtime->cache().open({.root = root, .token_capacity = 200, .reuse = false}).value());
      runtime->cache().attach(s, text);
      if (together) {
        sequences.push_back(std::move(s));
        continue;
      }
      const StepItem item{&s, text, Logits::last};
      const auto logits = Stepper(*runtime).run({&item, 1});
      alone.emplace_back(logits.value().begin(), logits.value().end());
    }
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
  for (Sequence& s : sequences) items.push_back({&s, text, Logits::last});
  Stepper stepper(*runtime);
  const auto logits = stepper.run(items);
  ASSERT_TRUE(logits.ok());
  const std::size_t vocabulary = runtime->config().vocabulary;
  for (std::size_t i = 0; i < alone.size(); ++i)
    EXPECT_TRUE(std::ranges::equal(alone[i], logits.value().subspan(i * vocabulary, vocabulary)));
}

}  // namespace
}  // namespace quire
