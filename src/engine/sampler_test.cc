#include "engine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "base/random.h"

namespace quire {
namespace {

using ::testing::HasSubstr;

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(std::uint32_t count, std::uint64_t seed, double spread = 3) {
  Random random(seed);
  std::vector<float> logits(count);
  for (float& l : logits) l = static_cast<float>(spread * (2 * random.unit() - 1));
  return logits;
}

// What the header says, step by step over the whole vocabulary, with nothing clever: the
// probability of each token that may be drawn.
std::map<TokenId, double> plain_distribution(std::span<const float> logits,
                                             const SamplingOptions& o) {
  struct Entry {
    TokenId token;
    double probability;
  };
  std::vector<Entry> kept;
  const double max = *std::max_element(logits.begin(), logits.end());
  for (TokenId t = 0; t < logits.size(); ++t)
    kept.push_back({t, std::exp((logits[t] - max) / o.temperature)});
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Entry& a, const Entry& b) { return a.probability > b.probability; });
  const auto normalize = [&] {
    double sum = 0;
    for (const Entry& e : kept) sum += e.probability;
    for (Entry& e : kept) e.probability /= sum;
  };
  const auto keep_mass = [&](double share) {  // the fewest first ones that hold the share
    double mass = 0;
    std::size_t count = 0;
    while (count < kept.size() && mass < share) mass += kept[count++].probability;
    kept.resize(count);
  };
  if (o.top_k > 0 && o.top_k < kept.size()) kept.resize(o.top_k);
  normalize();
  if (o.typical_p < 1) {
    double entropy = 0;
    for (const Entry& e : kept)
      if (e.probability > 0) entropy -= e.probability * std::log(e.probability);
    std::stable_sort(kept.begin(), kept.end(), [&](const Entry& a, const Entry& b) {
      return std::abs(std::log(a.probability) + entropy) <
             std::abs(std::log(b.probability) + entropy);
    });
    keep_mass(o.typical_p);
    std::stable_sort(kept.begin(), kept.end(),
                     [](const Entry& a, const Entry& b) { return a.probability > b.probability; });
    normalize();
  }
  if (o.top_p < 1) {
    keep_mass(o.top_p);
    normalize();
  }
  if (o.min_p > 0) {
    const double floor = o.min_p * kept.front().probability;
    std::erase_if(kept, [&](const Entry& e) { return e.probability < floor; });
    normalize();
  }
  std::map<TokenId, double> out;
  for (const Entry& e : kept)
    if (e.probability > 0) out[e.token] = e.probability;
  return out;
}

class SamplerTest : public ::testing::Test {
 protected:
  Choice sample(std::vector<float> logits, const SamplingOptions& o, std::uint32_t choice = 0,
                std::uint32_t position = 0) {
    return sampler_.sample(logits, o, counts_, choice, position);
  }

  // Draws at many positions and compares how often each token came with the plain distribution.
  void expect_drawn_like_plain(const std::vector<float>& logits, const SamplingOptions& o,
                               std::uint32_t draws = 8000) {
    const std::map<TokenId, double> expected = plain_distribution(logits, o);
    std::map<TokenId, std::uint32_t> seen;
    for (std::uint32_t position = 0; position < draws; ++position)
      ++seen[sample(logits, o, 0, position).token];
    for (const auto& [token, count] : seen)
      EXPECT_TRUE(expected.contains(token)) << "token " << token << " is not allowed";
    for (const auto& [token, probability] : expected) {
      const double mean = probability * draws;
      // Five standard deviations and a little: with a fixed seed this holds or does not, for good.
      EXPECT_NEAR(seen[token], mean, 5 * std::sqrt(mean * (1 - probability)) + 3)
          << "token " << token;
      if (mean > 40) {
        EXPECT_GT(seen[token], 0u) << "token " << token << " was never drawn";
      }
    }
  }

  Sampler sampler_{vector_kernels(best_isa()), 1024};
  TokenCounts counts_;
};

TEST_F(SamplerTest, GreedyTakesTheHighestAndTheLowestIdOfEquals) {
  EXPECT_EQ(sample({1, 5, 2, 5, 5}, {}).token, 1u);
  EXPECT_EQ(sample({-1, -1, -1}, {}).token, 0u);
  EXPECT_EQ(sample({-0.0f, 0.0f, -3}, {}).token, 0u);
  EXPECT_EQ(sample({kNever, kNever, -50, kNever}, {}).token, 2u);
  std::vector<float> wide(1000, 0.25f);
  for (const std::uint32_t at : {999u, 513u, 64u, 15u}) {
    wide[at] = 7;
    EXPECT_EQ(sample(wide, {}).token, at);  // each later one is lower
  }
  // top-k 1 is greedy at any temperature.
  EXPECT_EQ(sample({1, 5, 2, 5, 5}, {.temperature = 50, .top_k = 1}).token, 1u);
}

TEST_F(SamplerTest, TemperatureScalesTheDistribution) {
  for (const float temperature : {0.2f, 0.7f, 1.0f, 2.5f})
    expect_drawn_like_plain(random_logits(40, 1), {.temperature = temperature});
}

TEST_F(SamplerTest, TopKKeepsTheBest) {
  for (const std::uint32_t k : {2u, 5u, 63u, 64u, 99u})
    expect_drawn_like_plain(random_logits(100, 2), {.temperature = 1, .top_k = k});
}

TEST_F(SamplerTest, TopKAmongEqualsKeepsTheLowestIds) {
  const std::vector<float> flat(100, 1.5f);
  for (const std::uint32_t k : {3u, 70u}) {
    const SamplingOptions o{.temperature = 1, .top_k = k};
    EXPECT_EQ(plain_distribution(flat, o).rbegin()->first, k - 1);
    expect_drawn_like_plain(flat, o);
  }
}

TEST_F(SamplerTest, TopPKeepsTheHeadOfTheMass) {
  for (const float p : {0.1f, 0.5f, 0.9f, 0.99f})
    expect_drawn_like_plain(random_logits(60, 3), {.temperature = 1, .top_p = p});
}

TEST_F(SamplerTest, TopPOfAFlatDistributionReachesPastTheFirstCandidates) {
  // 0.8 of 700 nearly equal tokens is more than the sampler looks at first.
  const SamplingOptions o{.temperature = 1, .top_p = 0.8f};
  const std::vector<float> logits = random_logits(700, 4, 0.05);
  EXPECT_GT(plain_distribution(logits, o).size(), 512u);
  expect_drawn_like_plain(logits, o, 20000);
}

TEST_F(SamplerTest, MinPKeepsWhatIsNotFarBelowTheBest) {
  for (const float p : {0.02f, 0.2f, 0.7f, 1.0f})
    expect_drawn_like_plain(random_logits(60, 5), {.temperature = 1, .min_p = p});
}

TEST_F(SamplerTest, TypicalKeepsWhatIsAsSurprisingAsExpected) {
  for (const float p : {0.1f, 0.4f, 0.8f, 0.97f})
    expect_drawn_like_plain(random_logits(60, 6), {.temperature = 1, .typical_p = p});
  // One token holds most of the mass, but is less surprising than the entropy: others are nearer.
  std::vector<float> peaked(50, 0);
  peaked[7] = 3;
  const SamplingOptions o{.temperature = 1, .typical_p = 0.2f};
  EXPECT_FALSE(plain_distribution(peaked, o).contains(7));
  expect_drawn_like_plain(peaked, o);
}

TEST_F(SamplerTest, EverythingTogetherFollowsTheStatedOrder) {
  Random random(7);
  for (int round = 0; round < 12; ++round) {
    const SamplingOptions o{.temperature = static_cast<float>(0.3 + 2 * random.unit()),
                            .top_k = static_cast<std::uint32_t>(random.below(90)) + 2,
                            .top_p = static_cast<float>(0.4 + 0.6 * random.unit()),
                            .min_p = static_cast<float>(0.2 * random.unit()),
                            .typical_p = static_cast<float>(0.5 + 0.5 * random.unit()),
                            .seed = random.next()};
    SCOPED_TRACE(round);
    expect_drawn_like_plain(random_logits(90, 100 + round), o, 6000);
  }
}

TEST_F(SamplerTest, LimitsThatCannotBindChangeNothing) {
  const std::vector<float> logits = random_logits(10, 8);
  expect_drawn_like_plain(logits, {.temperature = 1, .top_k = 500});
  expect_drawn_like_plain(logits, {.temperature = 1, .top_k = 10});
  // A tiny share still leaves the best token.
  const auto best =
      static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  for (const float share : {1e-30f, 1e-6f})
    for (std::uint32_t position = 0; position < 50; ++position) {
      EXPECT_EQ(sample(logits, {.temperature = 5, .top_p = share}, 0, position).token, best);
      EXPECT_EQ(sample(logits, {.temperature = 5, .top_k = 4, .top_p = share}, 0, position).token,
                best);
    }
}

TEST_F(SamplerTest, OnlyPossibleTokenIsDrawnWhateverTheLimits) {
  std::vector<float> logits(300, kNever);
  logits[123] = -7;
  const SamplingOptions shapes[] = {
      {.temperature = 1},
      {.temperature = 0},
      {.temperature = 1, .top_k = 5},
      {.temperature = 1, .top_p = 0.9f},
      {.temperature = 1, .min_p = 0.5f},
      {.temperature = 1, .typical_p = 0.5f},
      {.temperature = 100, .top_k = 100, .top_p = 0.99f, .min_p = 0.01f, .typical_p = 0.99f}};
  for (const SamplingOptions& o : shapes)
    for (std::uint32_t position = 0; position < 50; ++position) {
      const Choice c = sample(logits, o, 0, position);
      EXPECT_EQ(c.token, 123u);
      EXPECT_NEAR(c.logprob, 0, 1e-6);
    }
}

TEST_F(SamplerTest, BiasOfAHundredForcesAndForbids) {
  const std::vector<float> logits = random_logits(50, 9, 12);
  const auto best =
      static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const TokenId other = best == 3 ? 4 : 3;
  for (const float temperature : {0.0f, 1.0f, 1.5f})
    for (std::uint32_t position = 0; position < 200; ++position) {
      EXPECT_EQ(
          sample(logits, {.temperature = temperature, .logit_bias = {{other, 100.f}}}, 0, position)
              .token,
          other);
      EXPECT_NE(
          sample(logits, {.temperature = temperature, .logit_bias = {{best, -100.f}}}, 0, position)
              .token,
          best);
    }
}

TEST_F(SamplerTest, LimitsForbidAndLogprobsStayTheModels) {
  const std::vector<float> logits = random_logits(100, 12);
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  const std::vector<TokenId> banned = {3, 50, 99};
  std::vector<std::uint32_t> allowed(4, 0);
  for (const TokenId t : {3u, 31u, 32u, 64u, 98u}) allowed[t / 32] |= 1u << t % 32;
  const SamplingOptions shapes[] = {{.temperature = 0},
                                    {.temperature = 2},
                                    {.temperature = 2, .top_k = 70},
                                    {.temperature = 2, .top_p = 0.9f},
                                    {.temperature = 2, .min_p = 0.01f},
                                    {.temperature = 2, .typical_p = 0.9f}};
  for (const SamplingOptions& o : shapes)
    for (std::uint32_t position = 0; position < 100; ++position) {
      std::vector<float> copy = logits;
      const Choice c = sampler_.sample(copy, o, {}, 0, position, {banned, allowed});
      EXPECT_TRUE(c.token == 31 || c.token == 32 || c.token == 64 || c.token == 98) << c.token;
      EXPECT_NEAR(c.logprob, logits[c.token] - std::log(sum), 1e-5);
      copy = logits;
      const std::vector<std::uint32_t> nothing(4, 0);
      EXPECT_EQ(sampler_.sample(copy, o, {}, 0, position, {{}, nothing}).token, kNoToken);
    }
}

TEST_F(SamplerTest, PenaltiesFollowTheirFormulas) {
  // Token 0 stands in the prompt, 1 was generated three times, 2 both, 3 neither; their logits
  // come out of the greedy choice: the one that a probe token just beats.
  counts_.add_prompt(std::vector<TokenId>{0, 0, 2});
  for (const TokenId t : {1u, 1u, 1u, 2u}) counts_.add_generated(t);
  const SamplingOptions o{
      .repetition_penalty = 1.25f, .presence_penalty = 0.5f, .frequency_penalty = 0.25f};
  const std::vector<float> logits = {4, 3, -2, 1};
  const float expected[] = {4 / 1.25f, 3 / 1.25f - 0.5f - 0.75f, -2 * 1.25f - 0.5f - 0.25f, 1};
  for (TokenId t = 0; t < 4; ++t)
    for (const float margin : {-0.01f, 0.01f}) {
      std::vector<float> probe(5, kNever);
      probe[t] = logits[t];
      probe[4] = expected[t] + margin;
      EXPECT_EQ(sample(probe, o).token, margin > 0 ? 4 : t) << "token " << t;
    }
}

TEST_F(SamplerTest, BiasComesBeforePenalties) {
  counts_.add_generated(0);
  // (2 + 2) / 2 = 2, not 2 / 2 + 2 = 3.
  const SamplingOptions o{.repetition_penalty = 2, .logit_bias = {{0, 2.f}}};
  EXPECT_EQ(sample({2, 2.5f}, o).token, 1u);
  EXPECT_EQ(sample({2, 1.5f}, o).token, 0u);
}

TEST_F(SamplerTest, LogprobsAreOfTheRawDistributionAndSumToOne) {
  const std::vector<float> logits = random_logits(200, 10);
  double sum = 0;
  for (const float l : logits) sum += std::exp(static_cast<double>(l));
  counts_.add_prompt(std::vector<TokenId>{5, 9});
  counts_.add_generated(17);
  const SamplingOptions o{.temperature = 1.7f,
                          .top_k = 30,
                          .repetition_penalty = 1.5f,
                          .presence_penalty = 1,
                          .logit_bias = {{17, 40.f}, {5, 3.f}, {17, 1.f}},
                          .logprobs = 200};
  for (std::uint32_t position = 0; position < 20; ++position) {
    const Choice c = sample(logits, o, 0, position);
    EXPECT_NEAR(c.logprob, logits[c.token] - std::log(sum), 1e-5);
    ASSERT_EQ(c.alternatives.size(), 200u);
    double mass = 0;
    for (std::size_t i = 0; i < 200; ++i) {
      mass += std::exp(static_cast<double>(c.alternatives[i].logprob));
      EXPECT_NEAR(c.alternatives[i].logprob, logits[c.alternatives[i].token] - std::log(sum), 1e-5);
      if (i > 0) {
        EXPECT_GE(c.alternatives[i - 1].logprob, c.alternatives[i].logprob);
      }
    }
    EXPECT_NEAR(mass, 1, 1e-5);
  }
  EXPECT_EQ(sample(logits, {.logprobs = 7}).alternatives.size(), 7u);
  EXPECT_EQ(sample(logits, {.logprobs = 1000}).alternatives.size(), 200u);
  EXPECT_TRUE(sample(logits, {}).alternatives.empty());
}

TEST_F(SamplerTest, TopNamesTheMostLikelyFirst) {
  const std::vector<float> logits = {1, 3, 3, kNever, 2};
  const std::vector<TokenLogprob> best = sampler_.top(logits, 4);
  ASSERT_EQ(best.size(), 4u);
  EXPECT_EQ(best[0].token, 1u);
  EXPECT_EQ(best[1].token, 2u);
  EXPECT_EQ(best[2].token, 4u);
  EXPECT_EQ(best[3].token, 0u);
}

TEST_F(SamplerTest, DrawDependsOnSeedChoiceAndPositionAlone) {
  const std::vector<float> logits = random_logits(500, 11, 1);
  const auto draws = [&](std::uint64_t seed, std::uint32_t choice) {
    std::vector<TokenId> tokens;
    for (std::uint32_t position = 0; position < 60; ++position) {
      sample(random_logits(300, position), {.temperature = 2});  // somebody else's, in between
      tokens.push_back(sample(logits, {.temperature = 1, .seed = seed}, choice, position).token);
    }
    return tokens;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1, 1));
  // Neither another sampler nor another instruction set changes a draw.
  Sampler plain(vector_kernels(Isa::scalar), 500);
  for (std::uint32_t position = 0; position < 60; ++position) {
    std::vector<float> copy = logits;
    const SamplingOptions o{.temperature = 1, .top_p = 0.9f, .seed = 5};
    EXPECT_EQ(plain.sample(copy, o, {}, 3, position).token, sample(logits, o, 3, position).token);
  }
}

TEST(SamplingOptions, WhatMakesNoSenseIsRefusedByName) {
  EXPECT_TRUE(SamplingOptions{}.check(100).ok());
  EXPECT_TRUE((SamplingOptions{.temperature = 100,
                               .top_k = 1000,
                               .top_p = 1,
                               .min_p = 1,
                               .typical_p = 1,
                               .repetition_penalty = 10,
                               .presence_penalty = -2,
                               .frequency_penalty = 2,
                               .logit_bias = {{99, -100.f}}}
                   .check(100)
                   .ok()));
  const auto refused = [](const SamplingOptions& o, const char* field) {
    const Status status = o.check(100);
    ASSERT_FALSE(status.ok()) << field;
    EXPECT_EQ(status.error().code, Code::invalid);
    EXPECT_THAT(status.error().message, HasSubstr(field));
  };
  constexpr float kHuge = std::numeric_limits<float>::infinity();
  for (const float bad : {kNaN, -0.1f, 101.f, kHuge}) refused({.temperature = bad}, "temperature");
  for (const float bad : {kNaN, -0.1f, 0.f, 1.1f}) refused({.top_p = bad}, "top_p");
  for (const float bad : {kNaN, -0.1f, 1.1f}) refused({.min_p = bad}, "min_p");
  for (const float bad : {kNaN, -1.f, 0.f, 1.1f}) refused({.typical_p = bad}, "typical_p");
  for (const float bad : {kNaN, -1.f, 0.f, 11.f, kHuge})
    refused({.repetition_penalty = bad}, "repetition_penalty");
  for (const float bad : {kNaN, -2.1f, 2.1f}) {
    refused({.presence_penalty = bad}, "presence_penalty");
    refused({.frequency_penalty = bad}, "frequency_penalty");
  }
  refused({.logit_bias = {{100, 1.f}}}, "token 100");
  for (const float bad : {kNaN, -101.f, 101.f}) refused({.logit_bias = {{1, bad}}}, "logit_bias");
}

}  // namespace
}  // namespace quire
