#include "engine/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "engine/testing.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kEnd = 257;

// Only lowercase letters (and what else is named) may be drawn, so that text is tokens and back.
SamplingOptions letters(std::uint64_t seed, std::vector<std::pair<TokenId, float>> more = {}) {
  SamplingOptions o{.temperature = 1, .seed = seed};
  for (TokenId t = 0; t < kTinyVocabulary; ++t)
    if ((t < 'a' || t > 'z') &&
        std::ranges::none_of(more, [&](const auto& m) { return m.first == t; }))
      o.logit_bias.emplace_back(t, -100.f);
  o.logit_bias.insert(o.logit_bias.end(), more.begin(), more.end());
  return o;
}

class GenerateTest : public ::testing::TestWithParam<const char*> {
 protected:
  static TinyOptions model() {
    return {.architecture = GetParam(),
            .layers = std::string_view(GetParam()) == "gemma3" ? 7u : 2u};
  }

  GenerateResult run(const GenerateOptions& o, const GenerateEvents& events = {}) {
    auto result = client_generate(*runtime_, prompt_, o, events);
    EXPECT_TRUE(result.ok()) << result.error().message;
    CHECK(result.ok());
    runtime_->cache().check();
    EXPECT_EQ(runtime_->cache().stats().referenced_blocks, 0u);
    EXPECT_EQ(runtime_->cache().stats().sequences, 0u);
    return std::move(result.value());
  }

  // The logits after `tokens`, computed from nothing.
  std::vector<float> logits_after(std::span<const TokenId> tokens) {
    Sequence s =
        std::move(runtime_->empty_sequence(static_cast<std::uint32_t>(tokens.size())).value());
    const StepItem item{&s, tokens, Logits::last};
    const auto logits = Stepper(*runtime_).run({&item, 1});
    EXPECT_TRUE(logits.ok());
    return {logits.value().begin(), logits.value().end()};
  }

  // One choice, every token from the whole text anew: nothing shared, nothing cached, no batch.
  Generated plain_run(const GenerateOptions& o, std::uint32_t choice) {
    Generated out;
    std::vector<TokenId> tokens = prompt_;
    TokenCounts counts;
    counts.add_prompt(prompt_);
    while (out.tokens.size() < o.tokens_max) {
      std::vector<float> logits = logits_after(tokens);
      const Choice c = runtime_->sampler().sample(logits, o.sampling, counts, choice,
                                                  static_cast<std::uint32_t>(tokens.size()));
      counts.add_generated(c.token);
      tokens.push_back(c.token);
      out.tokens.push_back(c.token);
      out.choices.push_back(c);
      if (!o.ignore_end && c.token == kEnd) break;
    }
    return out;
  }

  double teacher_forced_score(std::span<const TokenId> answer) {
    std::vector<TokenId> tokens = prompt_;
    double score = 0;
    for (const TokenId t : answer) {
      const std::vector<float> logits = logits_after(tokens);
      score += logits[t] - runtime_->sampler().log_sum_exp(logits);
      tokens.push_back(t);
    }
    return score;
  }

  static void expect_same(const Generated& a, const Generated& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    ASSERT_EQ(a.choices.size(), b.choices.size());
    for (std::size_t i = 0; i < a.choices.size(); ++i)
      EXPECT_EQ(a.choices[i].logprob, b.choices[i].logprob) << "token " << i;
  }

  TinyRuntime runtime_{model(), {.context = 400}};
  // Longer than the windows of gemma3, and not a whole number of blocks.
  std::vector<TokenId> prompt_ =
      byte_tokens("The quick brown fox jumps over the lazy dog, and the dog lets it pass again.");
};

TEST_P(GenerateTest, EveryChoiceIsWhatItWouldBeAlone) {
  GenerateOptions o{.tokens_max = 12, .choices = 4};
  o.sampling = {
      .temperature = 1.2f, .repetition_penalty = 1.1f, .presence_penalty = 0.3f, .seed = 7};
  const GenerateResult together = run(o);
  ASSERT_EQ(together.answers.size(), 4u);
  EXPECT_NE(together.answers[0].tokens, together.answers[1].tokens);
  for (std::uint32_t c = 0; c < 4; ++c) expect_same(together.answers[c], plain_run(o, c));
  o.choices = 1;
  expect_same(run(o).answers[0], together.answers[0]);
}

TEST_P(GenerateTest, GreedyIsThePlainArgmax) {
  const GenerateOptions o{.tokens_max = 40, .ignore_end = true};
  const GenerateResult got = run(o);
  expect_same(got.answers[0], plain_run(o, 0));
  EXPECT_EQ(got.answers[0].finish, Finish::length);
  double sum = 0;
  for (const Choice& c : got.answers[0].choices) sum += c.logprob;
  EXPECT_NEAR(got.answers[0].score, sum, 1e-6);
}

TEST_P(GenerateTest, ChunksAndCacheHitsChangeNothing) {
  GenerateOptions o{.tokens_max = 20, .ignore_end = true};
  const GenerateResult first = run(o);
  EXPECT_EQ(first.timings.prompt_tokens, prompt_.size());
  EXPECT_EQ(first.timings.cached_tokens, 0u);
  const GenerateResult again = run(o);
  EXPECT_GE(again.timings.cached_tokens, 64u);
  expect_same(again.answers[0], first.answers[0]);
  for (const std::uint32_t chunk : {1u, 5u, 32u, 33u, 64u}) {
    runtime_->cache().clear(true);
    o.chunk = chunk;
    const GenerateResult chunked = run(o);
    EXPECT_EQ(chunked.timings.cached_tokens, 0u);
    expect_same(chunked.answers[0], first.answers[0]);
  }
}

TEST_P(GenerateTest, TextEndsBeforeTheStopString) {
  GenerateOptions o{.tokens_max = 30};
  o.sampling = letters(3);
  const std::string whole = run(o).answers[0].text;
  ASSERT_EQ(whole.size(), 30u);
  for (const std::size_t at : {0u, 9u, 27u}) {
    const std::string stop = whole.substr(at, 3);
    o.stop = {"never this", stop};
    std::string streamed;
    const GenerateResult got = run(o, {.text = [&](std::uint32_t, std::string_view text) {
                                     streamed += text;
                                     return true;
                                   }});
    const Generated& a = got.answers[0];
    const std::size_t found = whole.find(stop);
    EXPECT_EQ(a.text, whole.substr(0, found));
    EXPECT_EQ(streamed, a.text);
    EXPECT_EQ(a.tokens.size(), found + 3);
    EXPECT_EQ(a.finish, Finish::stop_string);
    EXPECT_EQ(a.stopped_by, stop);
  }
  // Only the beginning of a stop string: the text is whole, nothing stays held back.
  o.stop = {whole.substr(27) + "x"};
  EXPECT_EQ(run(o).answers[0].text, whole);
  EXPECT_EQ(run(o).answers[0].finish, Finish::length);
}

TEST_P(GenerateTest, EndTokenEndsUnlessIgnored) {
  GenerateOptions o{.tokens_max = 24};
  Generated ended;
  std::uint64_t seed = 0;
  while (ended.tokens.size() < 4 || ended.finish != Finish::end_token) {
    ASSERT_LT(seed, 300u);
    o.sampling = letters(seed++, {{kEnd, 2.f}});
    ended = run(o).answers[0];
  }
  EXPECT_EQ(ended.tokens.back(), kEnd);
  EXPECT_EQ(ended.text.size(), ended.tokens.size() - 1);
  o.ignore_end = true;
  const Generated longer = run(o).answers[0];
  EXPECT_EQ(longer.tokens.size(), 24u);
  EXPECT_EQ(longer.finish, Finish::length);
  EXPECT_TRUE(std::equal(ended.tokens.begin(), ended.tokens.end(), longer.tokens.begin()));
  EXPECT_THAT(longer.text, ::testing::Not(HasSubstr("<|eos|>")));
  o.skip_special = false;
  EXPECT_THAT(run(o).answers[0].text, HasSubstr("<|eos|>"));
}

TEST_P(GenerateTest, NoTokensAndOneToken) {
  GenerateOptions o{.tokens_max = 0, .choices = 2};
  const GenerateResult none = run(o);
  ASSERT_EQ(none.answers.size(), 2u);
  EXPECT_TRUE(none.answers[0].tokens.empty());
  EXPECT_EQ(none.answers[0].finish, Finish::length);
  o.tokens_max = 1;
  o.choices = 1;
  const GenerateResult one = run(o);
  ASSERT_EQ(one.answers[0].tokens.size(), 1u);
  EXPECT_EQ(one.timings.decoded_tokens, 1u);
  o.beams = 3;
  o.tokens_max = 0;
  EXPECT_TRUE(run(o).answers[0].tokens.empty());
  prompt_.resize(1);
  o.tokens_max = 2;
  EXPECT_FALSE(run(o).answers[0].tokens.empty());
}

TEST_P(GenerateTest, WhatDoesNotFitIsRefusedWithItsNumbers) {
  const auto refused = [&](const GenerateOptions& o) {
    const auto result = client_generate(*runtime_, prompt_, o);
    EXPECT_FALSE(result.ok());
    if (result.ok()) return std::string();
    EXPECT_EQ(result.error().code, Code::invalid);
    return result.error().message;
  };
  prompt_.assign(390, 'a');
  const std::string message = refused({.tokens_max = 11});
  EXPECT_THAT(message, HasSubstr("390"));
  EXPECT_THAT(message, HasSubstr("11"));
  EXPECT_THAT(message, HasSubstr("400"));
  EXPECT_FALSE(run({.tokens_max = 10, .ignore_end = true}).answers.empty());
  EXPECT_THAT(refused({.choices = 0}), HasSubstr("n, best_of"));
  EXPECT_THAT(refused({.choices = 3, .beams = 2}), HasSubstr("beam"));
  GenerateOptions shaped{.beams = 2};
  shaped.stop = {"x"};
  EXPECT_THAT(refused(shaped), HasSubstr("stop"));
  shaped.stop.clear();
  shaped.sampling.temperature = 1;
  EXPECT_THAT(refused(shaped), HasSubstr("beam search"));
  shaped.sampling = {.repetition_penalty = 1.5f};
  EXPECT_THAT(refused(shaped), HasSubstr("beam search"));
  prompt_ = {kTinyVocabulary};
  EXPECT_THAT(refused({}), HasSubstr("outside the vocabulary"));
  prompt_.clear();
  EXPECT_THAT(refused({}), HasSubstr("empty"));
}

TEST_P(GenerateTest, CancellingLeavesNothingBehind) {
  GenerateOptions o{.tokens_max = 30, .choices = 3, .ignore_end = true};
  o.sampling = letters(5);
  int calls = 0;
  const GenerateResult got =
      run(o, {.text = [&](std::uint32_t, std::string_view) { return ++calls < 10; }});
  EXPECT_EQ(calls, 10);
  for (const Generated& a : got.answers) {
    EXPECT_EQ(a.finish, Finish::cancelled);
    EXPECT_LE(a.tokens.size(), 4u);
  }
  // While the prompt is read.
  runtime_->cache().clear(true);
  o.chunk = 16;
  const auto stopped =
      client_generate(*runtime_, prompt_, o,
                      {.prefill = [](std::uint32_t done, std::uint32_t) { return done < 32; }});
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.error().code, Code::cancelled);
  // Between steps that give no text: a beam search.
  int steps = 0;
  const auto beams =
      client_generate(*runtime_, prompt_, {.tokens_max = 30, .beams = 4, .ignore_end = true},
                      {.step = [&] { return ++steps < 3; }});
  ASSERT_FALSE(beams.ok());
  EXPECT_EQ(beams.error().code, Code::cancelled);
  EXPECT_EQ(steps, 3);
  steps = 0;
  const GenerateResult few =
      run({.tokens_max = 30, .ignore_end = true}, {.step = [&] { return ++steps < 3; }});
  EXPECT_EQ(few.answers[0].tokens.size(), 3u);
  EXPECT_EQ(few.answers[0].finish, Finish::cancelled);
  EXPECT_EQ(runtime_->cache().stats().referenced_blocks, 0u);
  EXPECT_EQ(runtime_->cache().stats().sequences, 0u);
}

TEST_P(GenerateTest, BeamOfOneIsGreedy) {
  GenerateOptions o{.tokens_max = 12, .ignore_end = true};
  const Generated greedy = run(o).answers[0];
  o.beams = 1;
  o.length_penalty = 0;
  const Generated beam = run(o).answers[0];
  EXPECT_EQ(beam.tokens, greedy.tokens);
  EXPECT_EQ(beam.text, greedy.text);
  EXPECT_NEAR(beam.score, greedy.score, 1e-4);
}

TEST_P(GenerateTest, BeamScoresAreThoseOfTheModel) {
  GenerateOptions o{.tokens_max = 6, .choices = 5, .beams = 5, .ignore_end = true};
  o.sampling.logprobs = 3;
  const GenerateResult got = run(o);
  ASSERT_EQ(got.answers.size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    const Generated& a = got.answers[i];
    ASSERT_EQ(a.tokens.size(), 6u);
    EXPECT_NEAR(a.score, teacher_forced_score(a.tokens) / 6, 1e-5);
    ASSERT_EQ(a.choices[4].alternatives.size(), 3u);
    EXPECT_GE(a.choices[4].alternatives[0].logprob, a.choices[4].logprob);
    if (i > 0) {
      EXPECT_GE(got.answers[i - 1].score, a.score);
      EXPECT_NE(got.answers[i - 1].tokens, a.tokens);
    }
  }
}

TEST_P(GenerateTest, WideBeamFindsTheBestOfAllPairs) {
  // Every first token, every second token: 260 forks in one step.
  Sequence root = std::move(runtime_->empty_sequence(100).value());
  const StepItem all{&root, prompt_, Logits::last};
  const auto first_logits = Stepper(*runtime_).run({&all, 1});
  const std::vector<TokenLogprob> firsts =
      runtime_->sampler().top(first_logits.value(), kTinyVocabulary);
  std::vector<Sequence> forks;
  std::vector<StepItem> items;
  for (const TokenLogprob& t : firsts) {
    forks.push_back(std::move(runtime_->cache().fork(root).value()));
    items.push_back({nullptr, {&t.token, 1}, Logits::last});
  }
  for (std::size_t i = 0; i < items.size(); ++i) items[i].sequence = &forks[i];
  const std::span<float> logits = Stepper(*runtime_).run(items).value();
  double best = -1e30;
  std::vector<TokenId> best_pair;
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    const TokenLogprob second =
        runtime_->sampler().top(logits.subspan(i * kTinyVocabulary, kTinyVocabulary), 1)[0];
    if (const double score = firsts[i].logprob + second.logprob; score > best) {
      best = score;
      best_pair = {firsts[i].token, second.token};
    }
  }
  if (firsts[63].logprob >= best) GTEST_SKIP() << "a beam of 64 might miss the best pair";
  forks.clear();
  root.close();
  GenerateOptions o{.tokens_max = 2, .beams = 64, .length_penalty = 0, .ignore_end = true};
  const Generated got = run(o).answers[0];
  EXPECT_EQ(got.tokens, best_pair);
  EXPECT_NEAR(got.score, best, 1e-5);
}

TEST_P(GenerateTest, BeamFindsTheBestTripleOfTheTopTokens) {
  constexpr std::uint32_t kWidth = 8;
  // All paths through the `kWidth` best tokens of each step: a beam that wide keeps at least the
  // best of them, since each of its prefixes is among the best prefixes or something better is.
  double best = -1e30;
  const auto search = [&](auto& self, std::vector<TokenId>& tokens, double score,
                          std::uint32_t left) -> void {
    if (left == 0) {
      best = std::max(best, score);
      return;
    }
    const std::vector<float> logits = logits_after(tokens);
    for (const TokenLogprob& t : runtime_->sampler().top(logits, left == 3 ? kWidth : 2)) {
      tokens.push_back(t.token);
      self(self, tokens, score + t.logprob, left - 1);
      tokens.pop_back();
    }
  };
  std::vector<TokenId> tokens = prompt_;
  search(search, tokens, 0, 3);
  const GenerateOptions o{
      .tokens_max = 3, .beams = 2 * kWidth, .length_penalty = 0, .ignore_end = true};
  const Generated got = run(o).answers[0];
  EXPECT_GE(got.score, best - 1e-5);
  EXPECT_NEAR(got.score, teacher_forced_score(got.tokens), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Architectures, GenerateTest,
                         ::testing::Values("llama", "deepseek2", "qwen2", "qwen3", "gemma3",
                                           "olmo2", "gpt2", "falcon", "glm4", "qwen2moe",
                                           "gpt-oss"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quire
