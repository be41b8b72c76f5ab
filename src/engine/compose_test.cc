// Every combination of format, budget, selection, approximate reuse and width: what a request is
// refused is what the tables say, and what it is not is answered, the same alone, again and beside
// others.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/combine.h"
#include "engine/engine_testing.h"

namespace quire {
namespace {

struct Mix {
  const char *format, *retain, *select;  // empty: none
  bool blend;
  std::uint32_t recent, choices, beams;

  std::string name() const {
    return fmt::format("{}{} budget '{}' select '{}'{} n={} beams={}", format,
                       recent ? " with recent_exact" : "", retain, select, blend ? " blend" : "",
                       choices, beams);
  }
};

std::vector<Mix> all_mixes() {
  std::vector<Mix> mixes;
  for (const char* format : {"f16", "int8", "hadamard-int4", "kivi-2", "minicache"})
    for (const char* retain : {"", "streaming:24", "snapkv:40%", "kvzip:50%", "h2o:40%,merge=value",
                               "knorm:40%,cut=50", "keydiff:40%,cut=64"})
      for (const char* select : {"", "quest:32", "xattention:0.5", "vertical-slash:16+16"})
        for (const bool blend : {false, true})
          for (const std::uint32_t width : {1u, 2u, 3u})
            mixes.push_back(
                {format, retain, select, blend, 0, width == 2 ? 2u : 1u, width == 3 ? 2u : 0u});
  mixes.push_back({"int8", "snapkv:40%", "", false, 32, 1, 0});
  mixes.push_back({"int8", "", "quest:32", false, 32, 1, 0});
  mixes.push_back({"int8", "", "xattention:0.5", false, 32, 1, 0});
  mixes.push_back({"f16", "streaming:4090", "", false, 0, 1, 0});
  return mixes;
}

class Composition {
 public:
  explicit Composition(const TinyOptions& model) : engine_(model, {}, {.step_tokens = 64}) {}

  // Whether it was answered.
  bool walk(const Mix& mix) {
    SCOPED_TRACE(mix.name());
    const Request asked = request_of(mix);
    const PreparedJob prepared =
        prepare_job(*engine_.runtime, engine_.options, request_of(mix), nullptr);
    const bool legal = prepared.job != nullptr;
    EXPECT_EQ(legal, !in_tables(mix, asked)) << prepared.failure.message;
    if (!legal) return false;
    const std::vector<std::vector<TokenId>> alone = answers(mix, false);
    EXPECT_EQ(answers(mix, false), alone) << "again";
    EXPECT_EQ(answers(mix, true), alone) << "beside another";
    engine_.engine->drop_snapshots();
    return true;
  }
  void expect_empty() { engine_.expect_empty(); }

 private:
  Request request_of(const Mix& mix) {
    Request q = request(printable_of(110, 1), 6);
    q.choices = mix.choices;
    q.beams = mix.beams;
    auto storage = std::make_shared<StoragePolicy>(find_format(mix.format).value());
    storage->recent_exact = mix.recent;
    if (*mix.retain)
      q.kv.retain = std::make_shared<RetainPolicy>(parse_retain_policy(mix.retain).value());
    if (*mix.select) {
      select_ = parse_select_policy(mix.select).value();
      if (select_.answers())
        q.kv.select = std::make_shared<SelectPolicy>(select_);
      else
        storage->prefill = select_.prefill;
    }
    if (mix.blend) q.kv.blend = 0.2;
    q.kv.storage = storage;
    return q;
  }

  // As `quire kv methods` prints them.
  bool in_tables(const Mix& mix, const Request& q) {
    const Geometry g = engine_.runtime->geometry(q.kv.storage.get());
    return refusal({.geometry = &g,
                    .retain = q.kv.retain.get(),
                    .select = *mix.select ? &select_ : nullptr,
                    .blends = mix.blend,
                    .choices = mix.choices,
                    .beams = mix.beams,
                    .context = engine_.runtime->context()})
        .has_value();
  }

  // Of all choices.
  std::vector<std::vector<TokenId>> answers(const Mix& mix, bool beside) {
    if (beside) engine_.submit(request(printable_of(90, 3), 12));
    const auto sink = engine_.submit(request_of(mix));
    engine_.run();
    EXPECT_TRUE(sink->result) << (sink->failure ? sink->failure->message : "no end");
    std::vector<std::vector<TokenId>> all;
    for (const MemorySink::Answer& answer : sink->answers) all.push_back(answer.ids());
    return all;
  }

  TinyEngine engine_;
  SelectPolicy select_;
};

TEST(Composition, IsRefusedAsTheTablesSayOrAnsweredRight) {
  Composition llama({.type = DType::q8_0, .layers = 4, .head_dim = 32});
  std::size_t answered = 0, all = 0;
  for (const Mix& mix : all_mixes()) {
    answered += llama.walk(mix);
    ++all;
  }
  EXPECT_GT(answered, all / 8);
  EXPECT_LT(answered, all / 2);
  llama.expect_empty();
}

TEST(Composition, OfWindowsIsRefusedAsTheTablesSayOrAnsweredRight) {
  Composition gemma({.architecture = "gemma3", .layers = 7});
  for (const char* retain : {"", "snapkv:40%", "knorm:40%,cut=64"})
    for (const char* select : {"", "quest:32", "xattention:0.5"})
      for (const bool blend : {false, true}) gemma.walk({"f16", retain, select, blend, 0, 1, 0});
  gemma.expect_empty();
}

TEST(Composition, OfLatentRowsIsRefusedAsTheTablesSayOrAnsweredRight) {
  Composition deepseek(
      {.architecture = "deepseek2", .type = DType::q8_0, .layers = 3, .rope_dimensions = 32});
  std::size_t answered = 0;
  for (const char* format : {"f16", "int8", "hadamard-int4"})
    for (const char* retain : {"", "snapkv:40%", "streaming:48"})
      for (const char* select : {"", "quest:32", "xattention:0.5"})
        for (const bool blend : {false, true})
          answered += deepseek.walk({format, retain, select, blend, 0, 2, 0});
  EXPECT_EQ(answered, 3u);
  answered += deepseek.walk({"f16", "", "", false, 0, 1, 2});
  EXPECT_EQ(answered, 4u);
  deepseek.expect_empty();
}

// Formats and windows that latent rows do not have are refused by name.
TEST(Composition, LatentRowsAreNotStoredInEveryFormat) {
  TinyRuntime runtime({.architecture = "deepseek2", .layers = 3, .rope_dimensions = 32});
  const auto refused = [&](const StoragePolicy& storage) {
    const Status checked = runtime->check_storage(storage);
    return checked.ok() ? "" : checked.error().message;
  };
  for (const char* format :
       {"kivi-2", "kivi-4", "nvfp4", "turbo-4", "fp8-e4m3", "q5_1", "int8/f16"})
    EXPECT_THAT(refused(find_format(format).value()), ::testing::HasSubstr("latent rows"))
        << format;
  for (const char* format : {"minicache", "kvquant-3"})
    EXPECT_NE(refused(find_format(format).value()), "") << format;
  StoragePolicy window = find_format("f16").value();
  window.window = 64;
  EXPECT_THAT(refused(window), ::testing::HasSubstr("latent attention"));
  for (const char* format : {"f16", "bf16", "f32", "int8", "q8_0", "q4_0", "hadamard-int4",
                             "hadamard-int4-head", "f16/int8", "int8/hadamard-int4"})
    EXPECT_EQ(refused(find_format(format).value()), "") << format;
}

}  // namespace
}  // namespace quire
