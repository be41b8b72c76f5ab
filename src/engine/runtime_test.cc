#include "engine/runtime.h"

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

}  // namespace
}  // namespace quire
