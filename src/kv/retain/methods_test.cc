// Each method's own property, on inputs small enough to work out by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kv/retain/observe.h"
#include "kv/retain/testing.h"

namespace quire {
namespace {
using testing::Contains, testing::ElementsAre, testing::IsSupersetOf, testing::Not;

constexpr std::uint32_t kDim = 8;

std::vector<float> unit(std::uint32_t axis, float size = 1) {
  std::vector<float> x(kDim);
  x[axis] = size;
  return x;
}

// Rotates a row of kDim by position, pairs (i, i + kDim/2).
std::vector<float> rotated(std::vector<float> x, std::uint32_t position) {
  for (std::uint32_t i = 0; i < kDim / 2; ++i) {
    const double angle = position * std::pow(0.1, i);
    const double c = std::cos(angle), s = std::sin(angle);
    const double a = x[i], b = x[i + kDim / 2];
    x[i] = static_cast<float>(c * a - s * b);
    x[i + kDim / 2] = static_cast<float>(s * a + c * b);
  }
  return x;
}

TEST(Streaming, KeepsFirstAndLastTokensWhateverTheirKeys) {
  const MadeUpLayer made(2, 1, 20, 1);
  EXPECT_THAT(kept(keep_of(method_named("streaming"), made.in, 7), 1),
              ElementsAre(0, 1, 2, 3, 17, 18, 19));
  EXPECT_THAT(kept(keep_of(method_named("window"), made.in, 3), 0), ElementsAre(17, 18, 19));
}

// Evicting a few tokens at a time leaves what evicting at once leaves.
TEST(Streaming, StepByStepEqualsAtOnce) {
  const RetainMethod m = method_named("streaming");
  std::vector<std::uint32_t> alive;
  for (std::uint32_t n = 0; n < 100; ++n) {
    alive.push_back(n);
    if (n % 3 != 0 && n != 99) continue;
    const RetainInput in{.kv_heads = 1, .slots = static_cast<std::uint32_t>(alive.size())};
    std::vector<std::uint32_t> next;
    for (std::uint32_t s : kept(keep_of(m, in, 12), 0)) next.push_back(alive[s]);
    alive = next;
  }
  EXPECT_EQ(alive, kept(keep_of(m, {.kv_heads = 1, .slots = 100}, 12), 0));
}

TEST(Random, DependsOnItsSeedAlone) {
  const MadeUpLayer a(2, 1, 50, 1), b(2, 1, 50, 2);
  RetainInput other = b.in;
  other.seed = a.in.seed;
  const RetainMethod m = method_named("random");
  EXPECT_EQ(keep_of(m, a.in, 20).slots, keep_of(m, other, 20).slots);
  EXPECT_NE(keep_of(m, a.in, 20).slots, keep_of(m, b.in, 20).slots);
  EXPECT_NE(kept(keep_of(m, a.in, 20), 0), kept(keep_of(m, a.in, 20), 1));
}

TEST(Oracle, KeepsTheAnswerThenWhatIsRecent) {
  MadeUpLayer made(1, 1, 30, 1);
  made.marks[11] = made.marks[12] = kMarkAnswer;
  EXPECT_THAT(kept(keep_of(method_named("oracle"), made.in, 8), 0),
              ElementsAre(0, 1, 2, 3, 11, 12, 28, 29));
}

// A key along the window's queries is found wherever it stands, and its neighbours with it.
class SnapKv : public testing::Test {
 protected:
  SnapKv() {
    method.window = method.recent = 4;
    question(0);
  }
  void question(std::uint32_t axis) {
    queries.clear();
    for (int i = 0; i < 4; ++i) {
      const std::vector<float> q = unit(axis, 4);
      queries.insert(queries.end(), q.begin(), q.end());
    }
  }
  void plant(std::uint32_t slot, std::uint32_t axis) {
    for (std::uint32_t c = 0; c < kDim; ++c) keys[slot * kDim + c] = c == axis ? 5 : 0;
  }
  std::vector<std::uint32_t> keep(std::uint32_t budget) {
    std::vector<float> mass(kSlots);
    add_window_mass({queries, 4, kSlots - 4, 0.35f}, keys, mass);
    return kept(keep_of(method, {.slots = kSlots, .window_mass = mass}, budget), 0);
  }

  static constexpr std::uint32_t kSlots = 64;
  RetainMethod method = method_named("snapkv");
  std::vector<float> keys = noise(kSlots * kDim, 5), queries;
};

TEST_F(SnapKv, KeepsWhatTheWindowLooksForWithItsNeighbours) {
  plant(30, 0);
  EXPECT_THAT(keep(9), ElementsAre(28, 29, 30, 31, 32, 60, 61, 62, 63));
  EXPECT_THAT(keep(20), IsSupersetOf({28, 29, 30, 31, 32, 60, 61, 62, 63}));
}

TEST_F(SnapKv, AnotherQuestionKeepsOtherTokens) {
  plant(30, 0);
  plant(12, 1);
  EXPECT_THAT(keep(9), Contains(30));
  EXPECT_THAT(keep(9), Not(Contains(12)));
  question(1);
  EXPECT_THAT(keep(9), Contains(12));
  EXPECT_THAT(keep(9), Not(Contains(30)));
}

TEST(Tova, DropsTheLeastAttendedTokenForAllHeadsOfALayer) {
  const RetainMethod m = method_named("tova");
  Scored scored(2);
  std::vector<std::uint32_t> least;
  for (std::uint64_t seed : {1, 2}) {
    const MadeUpLayer made(2, 2, 9, seed);
    std::vector<float> sums(9);
    for (std::size_t i = 0; i < made.window_mass.size(); ++i) sums[i % 9] += made.window_mass[i];
    least.push_back(
        static_cast<std::uint32_t>(std::min_element(sums.begin(), sums.end()) - sums.begin()));
    scored.add(m, made.in);
  }
  const KeepSets keep = scored.choose(m, 8);
  for (std::uint32_t lane = 0; lane < 4; ++lane)
    EXPECT_THAT(kept(keep, lane), Not(Contains(least[lane / 2])));
  EXPECT_EQ(kept(keep, 0), kept(keep, 1));
  EXPECT_NE(kept(keep, 0), kept(keep, 2));
}

TEST(Knorm, KeepsSmallKeysBeforeAndAfterRotationAndAtAnyScale) {
  MadeUpLayer made(1, 1, 40, 3, kDim);
  const RetainMethod m = method_named("knorm");
  const std::vector<std::uint32_t> plain = kept(keep_of(m, made.in, 15), 0);
  float largest_kept = 0, smallest_left = 1e9f;
  for (std::uint32_t s = 0; s < 40; ++s) {
    float norm = 0;
    for (std::uint32_t c = 0; c < kDim; ++c) norm += std::pow(made.keys[s * kDim + c], 2.0f);
    const bool stays = std::find(plain.begin(), plain.end(), s) != plain.end();
    (stays ? largest_kept : smallest_left) =
        stays ? std::max(largest_kept, norm) : std::min(smallest_left, norm);
  }
  EXPECT_LE(largest_kept, smallest_left);
  std::vector<float> turned, doubled;
  for (std::uint32_t s = 0; s < 40; ++s) {
    const auto row = std::span(made.keys).subspan(s * kDim, kDim);
    for (float x : rotated({row.begin(), row.end()}, s)) turned.push_back(x);
    for (float x : row) doubled.push_back(2 * x);
  }
  made.in.keys = turned;
  EXPECT_EQ(kept(keep_of(m, made.in, 15), 0), plain);
  made.in.keys = doubled;
  EXPECT_EQ(kept(keep_of(m, made.in, 15), 0), plain);
}

TEST(KeyDiff, EvictsDuplicatesBeforeAnOrthogonalKey) {
  std::vector<float> keys;
  for (std::uint32_t s = 0; s < 10; ++s)
    for (float x : unit(s == 6 ? 1 : 0, 1 + static_cast<float>(s))) keys.push_back(x);
  const RetainInput in{.key_dim = kDim, .slots = 10, .keys = keys};
  EXPECT_THAT(kept(keep_of(method_named("keydiff"), in, 1), 0), ElementsAre(6));
}

TEST(LagKv, RanksWithinEachRunSoThatEveryRunKeepsItsShare) {
  RetainMethod m = method_named("lagkv");
  m.sinks = 2;
  m.window = 8;
  const MadeUpLayer made(1, 1, 2 + 5 * 8 + 3, 1);
  const KeepSets keep = keep_of(m, made.in, 2 + 4 * 4 + 8 + 3);
  for (std::uint32_t run = 0; run < 4; ++run) {
    const auto slots = keep.lane(0);
    const auto in_run = std::count_if(slots.begin(), slots.end(), [&](std::uint32_t s) {
      return s >= 2 + run * 8 && s < 10 + run * 8;
    });
    EXPECT_EQ(in_run, 4) << run;
  }
  for (std::uint32_t s = 34; s < 45; ++s) EXPECT_THAT(kept(keep, 0), Contains(s));  // no successor
}

TEST(LagKv, PrefersTheTokenThatVariesMost) {
  RetainMethod m = method_named("lagkv");
  m.sinks = 0;
  m.window = 4;
  MadeUpLayer made(1, 1, 12, 1, kDim);
  for (std::uint32_t c = 0; c < kDim; ++c)
    made.keys[1 * kDim + c] = made.values[1 * kDim + c] = c % 2 == 0 ? 50.0f : -50.0f;
  // Two runs have a successor and keep nothing but their best; the last is kept whole.
  EXPECT_THAT(kept(keep_of(m, made.in, 6), 0), Contains(1));
}

TEST(Cur, MultipliesSharesOfTheNeighbourhood) {
  RetainMethod m = method_named("cur");
  m.sinks = 0;
  m.window = 4;
  const float k[8] = {1, 1, 1, 3, 10, 10, 10, 30}, v[8] = {1, 1, 3, 1, 1, 1, 1, 5};
  std::vector<float> keys, values;
  for (int s = 0; s < 8; ++s) {
    for (float x : unit(0, k[s])) keys.push_back(x);
    for (float x : unit(1, v[s])) values.push_back(x);
  }
  const RetainInput in{
      .key_dim = kDim, .value_dim = kDim, .slots = 8, .keys = keys, .values = values};
  std::vector<float> scores(8);
  m.score(m, in, scores);
  EXPECT_FLOAT_EQ(scores[3], 9.0f / 12 * 1 / 12);
  EXPECT_FLOAT_EQ(scores[7], 900.0f / 1200 * 25 / 28);
}

TEST(ExpectedAttention, OfQueriesThatDoNotVaryIsTheAttentionOfTheirMean) {
  MadeUpLayer made(1, 2, 30, 1, kDim);
  RetainMethod m = method_named("expected");
  m.sinks = 0;
  m.by_value = false;
  std::fill(made.covariance.begin(), made.covariance.end(), 0.0f);
  std::vector<float> scores(30), row(30), mean(30);
  m.score(m, made.in, scores);
  for (std::uint32_t q = 0; q < 2; ++q) {
    attention(std::span(made.mean).subspan(q * kDim, kDim), 1 / std::sqrt(static_cast<float>(kDim)),
              made.keys, row);
    for (std::uint32_t s = 0; s < 30; ++s) mean[s] += row[s] / 2;
  }
  for (std::uint32_t s = 0; s < 30; ++s) EXPECT_NEAR(scores[s], mean[s], 1e-6f);
  made.in.query_covariance = {};  // leaving it out is the same
  std::vector<float> without(30);
  m.score(m, made.in, without);
  for (std::uint32_t s = 0; s < 30; ++s) EXPECT_NEAR(scores[s], without[s], 1e-6f);
}

// The closed form against the mean of exp(q.k / sqrt(d)) over drawn queries.
TEST(ExpectedAttention, IsTheMeanOverGaussianQueries) {
  MadeUpLayer made(1, 1, 6, 1, kDim);
  RetainMethod m = method_named("expected");
  m.sinks = 0;
  m.by_value = false;
  const std::vector<float> spread = {0.2f, 0.4f, 0.6f, 0.8f, 1.0f, 0.3f, 0.5f, 0.7f};
  for (std::uint32_t i = 0; i < kDim; ++i) {
    made.mean[i] *= 0.5f;
    made.covariance[i * kDim + i] = spread[i] * spread[i];
    for (std::uint32_t s = 0; s < 6; ++s) made.keys[s * kDim + i] *= 0.7f;
  }
  const std::vector<float> normal = noise(100000 * kDim, 77);
  std::vector<double> drawn(6);
  for (std::size_t i = 0; i < 100000; ++i)
    for (std::uint32_t s = 0; s < 6; ++s) {
      double z = 0;
      for (std::uint32_t c = 0; c < kDim; ++c)
        z += (made.mean[c] + spread[c] * normal[i * kDim + c]) * made.keys[s * kDim + c];
      drawn[s] += std::exp(z / std::sqrt(double{kDim}));
    }
  double sum = 0;
  for (double x : drawn) sum += x;
  std::vector<float> scores(6);
  m.score(m, made.in, scores);
  for (std::uint32_t s = 0; s < 6; ++s) EXPECT_NEAR(scores[s] / (drawn[s] / sum), 1, 0.02);
}

TEST(ExpectedAttention, GrowsWithTheValue) {
  MadeUpLayer made(1, 1, 30, 1, kDim);
  const RetainMethod m = method_named("expected");
  std::vector<float> before(30), after(30);
  m.score(m, made.in, before);
  for (std::uint32_t c = 0; c < kDim; ++c) made.values[20 * kDim + c] *= 3;
  m.score(m, made.in, after);
  EXPECT_NEAR(after[20], 3 * before[20], 1e-6f);
  EXPECT_EQ(after[19], before[19]);
}

// H2O, one query at a time with blocks of one token, on a table of attention written by hand. Rows
// are queries, columns the tokens still there; what is evicted loses its sum.
struct Replay {
  explicit Replay(RetainMethod m, std::uint32_t size) : method(m), budget(size) {}

  // attention(query, token) for tokens still present
  template <class Attention>
  void step(std::uint32_t query, Attention attention) {
    tokens.push_back(query);
    mass.push_back(0);
    std::vector<float> row;
    for (std::uint32_t t : tokens) row.push_back(attention(query, t));
    float sum = 0;
    for (float x : row) sum += x;
    for (std::size_t i = 0; i < row.size(); ++i) mass[i] += row[i] /= sum;
    given += 1;
    const RetainInput in{.slots = static_cast<std::uint32_t>(tokens.size()), .total_mass = mass};
    const std::vector<std::uint32_t> keep = kept(keep_of(method, in, budget), 0);
    for (std::uint32_t s = 0; s < tokens.size(); ++s)
      if (!std::binary_search(keep.begin(), keep.end(), s)) {
        evicted.push_back(tokens[s]);
        lost += mass[s];
      }
    const auto compact = [&](auto& x) {
      auto old = x;
      x.clear();
      for (std::uint32_t s : keep) x.push_back(old[s]);
    };
    compact(tokens);
    compact(mass);
  }

  RetainMethod method;
  std::uint32_t budget;
  std::vector<std::uint32_t> tokens, evicted;
  std::vector<float> mass;
  double given = 0, lost = 0;
};

TEST(H2o, ReplaysATableOfAttention) {
  Replay h2o(method_named("h2o"), 4);  // two heavy, two recent
  for (std::uint32_t q = 0; q < 12; ++q)
    h2o.step(q, [](std::uint32_t, std::uint32_t token) {
      return token == 3 ? 8.0f : token == 7 ? 30.0f : token == 0 ? 3.0f : 1.0f;
    });
  // 2 goes before 1, which was seen once more; and 7, to which every query gives most, goes while 0
  // stays (2.1 against 3.4): sums favour age.
  EXPECT_THAT(h2o.tokens, ElementsAre(0, 3, 10, 11));
  EXPECT_THAT(h2o.evicted, ElementsAre(2, 1, 4, 5, 6, 7, 8, 9));
  double held = 0;
  for (float x : h2o.mass) held += x;
  EXPECT_NEAR(held + h2o.lost, h2o.given, 1e-4);
}

TEST(H2o, WithoutHeavyTokensIsAWindow) {
  RetainMethod m = method_named("h2o");
  m.recent_share = 1;
  const MadeUpLayer made(1, 2, 30, 1);
  EXPECT_EQ(kept(keep_of(m, made.in, 9), 0), kept(keep_of(method_named("window"), made.in, 9), 0));
}

TEST(Observed, ForgivesTokensThatFewQueriesSaw) {
  std::vector<float> mass = {5, 1, 1, 1, 3, 1};
  const RetainInput in{.slots = 6, .total_mass = mass};
  EXPECT_THAT(kept(keep_of(method_named("observed"), in, 2), 0), ElementsAre(4, 5));
}

// Token 1 was once attended to strongly, then never; token 2 always a little above average.
TEST(Scissorhands, DropsWhatWasOnceStrongBeforeWhatIsSteady) {
  constexpr std::uint32_t kTokens = 20;
  std::vector<float> total(kTokens), below(kTokens);
  for (int query = 0; query < 6; ++query) {
    const float once = query == 3 ? 0.9f : 0.0f, steady = 0.055f;
    std::vector<float> row(kTokens, (1 - once - steady) / (kTokens - 2));
    row[1] = once;
    row[2] = steady;
    count_below(row, below);
    for (std::uint32_t s = 0; s < kTokens; ++s) total[s] += row[s];
  }
  RetainMethod scissors = method_named("scissorhands"), h2o = method_named("h2o");
  scissors.recent_share = h2o.recent_share = 0;
  const RetainInput in{.slots = kTokens, .total_mass = total, .below_counts = below};
  EXPECT_THAT(kept(keep_of(scissors, in, 1), 0), ElementsAre(2));
  EXPECT_THAT(kept(keep_of(scissors, in, kTokens - 1), 0), Not(Contains(1)));
  EXPECT_THAT(kept(keep_of(h2o, in, 1), 0), ElementsAre(1));
}

TEST(Kvzip, TakesTheStrongestOfAHeadsQueries) {
  MadeUpLayer made(1, 2, 8, 1);
  std::fill(made.peak_mass.begin(), made.peak_mass.end(), 0.1f);
  made.peak_mass[5] = 0.6f;      // first query head
  made.peak_mass[8 + 6] = 0.5f;  // second
  EXPECT_THAT(kept(keep_of(method_named("kvzip"), made.in, 6), 0), ElementsAre(0, 1, 2, 3, 5, 6));
}

// The same passage twice: a repeating query is satisfied by either copy, so both score lower.
TEST(Kvzip, CopiesCompete) {
  const std::uint32_t half = 10;
  std::vector<float> passage = noise(half * kDim, 3);
  for (float& x : passage) x *= 2;
  const auto peaks = [&](std::uint32_t copies) {
    std::vector<float> keys;
    for (std::uint32_t c = 0; c < copies; ++c)
      keys.insert(keys.end(), passage.begin(), passage.end());
    std::vector<float> peak(half * copies);
    raise_peak_mass({passage, half, 0, 1}, {keys, 0, 0, half * copies}, noise(half * kDim, 4),
                    peak);
    float sum = 0;
    for (float x : peak) sum += x;
    return sum;
  };
  EXPECT_LT(peaks(2), 1.5f * peaks(1));
}

TEST(KvCompose, AddsTheLayersOpinionToTheHeads) {
  MadeUpLayer made(2, 1, 4, 1);
  made.peak_mass = {0.5f, 0.1f, 0.1f, 0.2f, 0.1f, 0.1f, 0.4f, 0.2f};
  made.in.peak_mass = made.peak_mass;
  std::vector<float> scores(8);
  const RetainMethod m = method_named("kvcompose");
  m.score(m, made.in, scores);
  EXPECT_FLOAT_EQ(scores[0], 0.5f + 0.3f);
  EXPECT_FLOAT_EQ(scores[4 + 2], 0.4f + 0.25f);
}

}  // namespace
}  // namespace quire
