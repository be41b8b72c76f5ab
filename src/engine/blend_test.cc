// Texts that are cached behind other prefixes, on tiny models.
#include "engine/blend.h"

#include <gtest/gtest.h>

#include "engine/engine_testing.h"
#include "engine/lane_rows.h"

namespace quire {
namespace {

TinyOptions llama(std::uint32_t layers = 4) {
  return {.type = DType::q8_0, .layers = layers, .head_dim = 32};
}

std::vector<TokenId> joined(std::initializer_list<std::vector<TokenId>> parts) {
  std::vector<TokenId> all;
  for (const auto& p : parts) all.insert(all.end(), p.begin(), p.end());
  return all;
}

void warm(Runtime& r, const std::vector<TokenId>& prompt) {
  Sequence s = std::move(r.open_sequence(static_cast<std::uint32_t>(prompt.size())).value());
  r.cache().attach(s, prompt);
  ASSERT_TRUE(Stepper(r).read(s).ok());
}

struct BlendedRead {
  std::vector<float> logits;  // of the last token
  std::uint32_t attached = 0, reused = 0, end = 0;
};

// A negative share: nothing is looked for.
BlendedRead run(Runtime& r, const std::vector<TokenId>& prompt, double recompute,
                std::uint32_t rows = 512) {
  BlendedRead out;
  const SequenceOptions options{.root = r.tenant_root("").value(),
                                .token_capacity = static_cast<std::uint32_t>(prompt.size()),
                                .reuse = recompute >= 0,
                                .publish = false};
  Sequence s = std::move(r.cache().open(options).value());
  out.attached = r.cache().attach(s, prompt).tokens;
  if (recompute >= 0) {
    auto blend = find_blend(r, s, recompute, options);
    EXPECT_TRUE(blend);
    if (!blend) return out;
    EXPECT_TRUE(blend->lay(r).ok());
    Stepper stepper(r);
    while (!blend->done()) EXPECT_TRUE(blend->advance(stepper, rows).ok());
    out.reused = blend->reused();
    out.end = s.length();
    EXPECT_EQ(s.pure_until(), out.attached);
  }
  const auto logits = Stepper(r).read(s);
  EXPECT_TRUE(logits.ok());
  out.logits.assign(logits.value().begin(), logits.value().end());
  return out;
}

double distance(const BlendedRead& a, const BlendedRead& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.logits.size(); ++i)
    sum += std::pow(double{a.logits[i]} - b.logits[i], 2);
  return std::sqrt(sum);
}

// Two texts that were read apart, in one prompt, at other places, with a question behind.
struct World {
  explicit World(std::uint32_t layers = 4, std::string format = "f16")
      : runtime(llama(layers), {.kv_format = std::move(format)}) {
    warm(*runtime, joined({printable_of(11, 1), first, printable_of(3, 2)}));
    warm(*runtime, joined({printable_of(40, 3), second, printable_of(3, 4)}));
  }
  std::vector<TokenId> first = printable_of(117, 5), second = printable_of(100, 6);
  std::vector<TokenId> prompt =
      joined({printable_of(50, 7), second, printable_of(13, 8), first, printable_of(20, 9)});
  TinyRuntime runtime;
};

// Whole blocks of the texts where they were cached: 21 + 64 ... of the first, 24 + 64 of the second.
TEST(Blend, FindsTextsWhereverTheyStand) {
  World w;
  const BlendedRead got = run(*w.runtime, w.prompt, 0);
  EXPECT_EQ(got.attached, 0u);
  EXPECT_EQ(got.reused, 64u + 96u);
  // The first text began at 11: its first whole block at 32, 21 tokens on, its last ends at 128.
  EXPECT_EQ(got.end, 50u + 100 + 13 + 21 + 96);
}

// A text far behind in a long source costs what it is long, not what comes before it.
TEST(Blend, ReadsTheBlocksOfATextAlone) {
  TinyRuntime runtime(llama());
  Sequence s = std::move(runtime->open_sequence(200).value());
  runtime->cache().attach(s, printable_of(200, 5));
  ASSERT_TRUE(Stepper(*runtime).read(s).ok());
  const LaneRows all = lane_rows(*runtime, s, 1, 0, {.values = true});
  const LaneRows some = lane_rows(*runtime, s, 1, 0, {.values = true}, {100, 164});
  ASSERT_EQ(some.tokens.size(), 164u - 96);
  EXPECT_EQ(some.tokens.front(), 96u);
  EXPECT_TRUE(std::equal(some.keys.begin(), some.keys.end(), all.keys.begin() + 96 * 32));
  EXPECT_TRUE(std::equal(some.values.begin(), some.values.end(), all.values.begin() + 96 * 32));
}

TEST(Blend, ComputingEverythingAgainIsReadingThePrompt) {
  World w;
  const BlendedRead want = run(*w.runtime, w.prompt, -1);
  for (const std::uint32_t rows : {512u, 37u})
    EXPECT_EQ(run(*w.runtime, w.prompt, 1, rows).logits, want.logits);
  const BlendedRead some = run(*w.runtime, w.prompt, 0.3);
  EXPECT_EQ(run(*w.runtime, w.prompt, 0.3, 41).logits, some.logits);
  EXPECT_NE(some.logits, want.logits);
  w.runtime->cache().check();
}

// In one layer keys and values depend on nothing but the token, and keys on the position: turning
// them is all it takes.
TEST(Blend, InOneLayerTurningKeysIsEnough) {
  World w(1, "f32");
  const BlendedRead want = run(*w.runtime, w.prompt, -1), got = run(*w.runtime, w.prompt, 0);
  for (std::size_t i = 0; i < want.logits.size(); ++i)
    ASSERT_NEAR(got.logits[i], want.logits[i], 2e-4 * (1 + std::fabs(want.logits[i])));
}

TEST(Blend, TheMoreIsComputedTheCloserItComes) {
  World w;
  const BlendedRead want = run(*w.runtime, w.prompt, -1);
  double before = 1e9;
  for (const double share : {0.0, 0.3, 0.7, 1.0}) {
    const double now = distance(run(*w.runtime, w.prompt, share), want);
    EXPECT_LE(now, before * 1.05) << share;
    before = now;
  }
  EXPECT_EQ(before, 0);
}

TEST(Blend, ATruePrefixIsSharedAsEver) {
  World w;
  const std::vector<TokenId> prompt =
      joined({printable_of(11, 1), w.first, w.second, printable_of(9, 9)});
  const BlendedRead got = run(*w.runtime, prompt, 0.15);
  EXPECT_EQ(got.attached, 128u);
  EXPECT_EQ(got.reused, 54u);  // 64 of the second text, less 15 %
}

TEST(BlendEngine, AnswersAndStaysPrivate) {
  TinyEngine e(llama(), {}, {.step_tokens = 64});
  World w;
  for (const auto& before : {joined({printable_of(11, 1), w.first, printable_of(3, 2)}),
                             joined({printable_of(40, 3), w.second, printable_of(3, 4)})})
    e.submit(request(before, 0));
  e.run();
  Request r = request(w.prompt, 8);
  r.kv.blend = 0.25;
  r.choices = 2;
  const auto got = e.submit(std::move(r));
  const auto beside = e.submit(request(printable_of(70, 20), 30));
  e.run();
  ASSERT_TRUE(got->result) << got->failure->message;
  EXPECT_EQ(got->result->approximate_tokens, 120u);
  EXPECT_EQ(got->result->computed_tokens, w.prompt.size() - 120);
  EXPECT_TRUE(beside->result);
  const auto want =
      naive_generate(*w.runtime, printable_of(70, 20), {.tokens_max = 30, .ignore_end = true});
  EXPECT_EQ(beside->answers[0].ids(), want.value().answers[0].tokens);
  // Whoever asks for the same without saying so computes it.
  const auto plain = e.submit(request(w.prompt, 8));
  e.run();
  EXPECT_EQ(plain->result->cached_tokens, 0u);
  const auto alone = naive_generate(*w.runtime, w.prompt, {.tokens_max = 8, .ignore_end = true});
  EXPECT_EQ(plain->answers[0].ids(), alone.value().answers[0].tokens);
  e.expect_empty();
}

// The cache may drop what is parked and can be computed again. A prompt that was put together cannot.
TEST(BlendEngine, TheCacheKeepsWhatIsParked) {
  SequenceOptions options;
  Blending(0.2).open(options);
  EXPECT_FALSE(options.recomputable);
}

TEST(BlendEngine, OthersTextsAreNotFound) {
  TinyEngine e(llama());
  Request salted = request(joined({printable_of(11, 1), printable_of(117, 5)}), 0);
  salted.kv.salt = "mine";
  e.submit(std::move(salted));
  Request other = request(joined({printable_of(11, 1), printable_of(117, 6)}), 0);
  other.kv.tenant = "acme";
  e.submit(std::move(other));
  e.run();
  for (const std::uint64_t seed : {5u, 6u}) {
    Request r =
        request(joined({printable_of(7, 2), printable_of(117, seed), printable_of(5, 3)}), 4);
    r.kv.blend = 0.15;
    const auto got = e.submit(std::move(r));
    e.run();
    ASSERT_TRUE(got->result);
    EXPECT_EQ(got->result->approximate_tokens, 0u);
  }
}

TEST(BlendEngine, RefusesWhatItCannotDo) {
  const auto refused = [](Runtime& r, Request q) {
    q.kv.blend = 0.15;
    return prepare_job(r, {}, std::move(q), nullptr).failure.kind == FailureKind::invalid;
  };
  TinyRuntime exact(llama()), lossy(llama(), {.kv_format = "int8"});
  TinyRuntime windows({.architecture = "gemma3", .layers = 7});
  EXPECT_FALSE(refused(*exact, request(printable_of(50, 1))));
  EXPECT_TRUE(refused(*lossy, request(printable_of(50, 1))));
  EXPECT_TRUE(refused(*windows, request(printable_of(50, 1))));
  Request scored = request(printable_of(50, 1));
  scored.prompt_logprobs = 1;
  EXPECT_TRUE(refused(*exact, std::move(scored)));
}

}  // namespace
}  // namespace quire
