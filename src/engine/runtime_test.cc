#include "engine/runtime.h"

#include <filesystem>

#include "engine/testing.h"

namespace quire {
namespace {

TEST(Runtime, TheCacheGrowsWhileItRuns) {
  // 4 KiB per token: two slabs' worth of budget hold two of these prompts, not three.
  TinyRuntime runtime({.kv_heads = 4, .head_dim = 64}, {.kv_cache_bytes = 4u << 20});
  std::vector<Sequence> sequences;
  const auto hold_one_more = [&]() -> Status {
    TRY(Sequence s, runtime->empty_sequence(400));
    const std::vector<TokenId> prompt(400, static_cast<TokenId>(sequences.size()));
    for (std::size_t at = 0; at < prompt.size(); at += 100) {
      const StepItem item{&s, std::span(prompt).subspan(at, 100), Logits::none};
      TRY([[maybe_unused]] const std::span<float> none, Stepper(*runtime).run({&item, 1}));
    }
    sequences.push_back(std::move(s));
    return {};
  };
  for (int i = 0; i < 2; ++i) {
    const Status held = hold_one_more();
    ASSERT_TRUE(held.ok()) << held.error().message;
  }
  const Status full = hold_one_more();
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.error().code, Code::exhausted);

  EXPECT_EQ(runtime->cache().resize(16u << 20), 16u << 20);
  for (int i = 0; i < 5; ++i) {
    const Status held = hold_one_more();
    ASSERT_TRUE(held.ok()) << held.error().message;
  }
  EXPECT_GT(runtime->cache().stats().referenced_bytes, 8u << 20);
  runtime->cache().check();
}

// Every model that a CPU can load, on every instruction set that this one has.
TEST(Runtime, AnswersDoNotDependOnWhatBecomesOfTheFile) {
  for (const Isa isa : kIsas)
    for (const DType type : {DType::f32, DType::bf16, DType::q8_0, DType::q4_1})
      for (const bool tied : {true, false}) {
        if (!cpu_has(isa)) continue;
        const TinyFile file({.type = type, .tied_head = tied});
        auto opened =
            Runtime::open(file.path(), {.threads = 1, .isa = isa, .kv_cache_bytes = 16u << 20});
        ASSERT_TRUE(opened.ok()) << opened.error().message;
        Runtime& runtime = *opened.value();
        const GenerateOptions options{.tokens_max = 20, .ignore_end = true};
        const auto answer = [&] {
          runtime.cache().clear(true);
          const auto made = client_generate(runtime, byte_tokens("What is it?"), options);
          EXPECT_TRUE(made.ok());
          return made.value().answers[0].tokens;
        };
        const auto before = answer();
        std::filesystem::resize_file(file.path(), 0);
        EXPECT_EQ(answer(), before) << isa_name(isa);
        std::filesystem::resize_file(file.path(), 1 << 20);  // of zeros
        EXPECT_EQ(answer(), before) << isa_name(isa);
      }
}

// Its scores need numbers of the file, for one step in many; nobody keeps them in memory for that.
TEST(Runtime, AMethodThatReadsTheFileSaysThatItChanged) {
  const TinyFile file({.head_dim = 64});
  auto opened = Runtime::open(file.path(), {.threads = 1, .kv_cache_bytes = 16u << 20});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto policy = parse_retain_policy("critical-snapkv:30%");
  ASSERT_TRUE(policy.ok());
  const GenerateOptions options{.tokens_max = 20,
                                .ignore_end = true,
                                .retain = std::make_shared<RetainPolicy>(policy.value())};
  const std::vector<TokenId> prompt(200, 65);
  ASSERT_TRUE(client_generate(*opened.value(), prompt, options).ok());
  std::filesystem::resize_file(file.path(), 0);
  const auto refused = client_generate(*opened.value(), prompt, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("has changed"), std::string::npos);
}

}  // namespace
}  // namespace quire
