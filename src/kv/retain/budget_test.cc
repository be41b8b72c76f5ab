// How budgets are split over lanes: each rule's own property.
#include "kv/retain/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "kv/retain/testing.h"

namespace quire {
namespace {
using testing::ElementsAre;

double mass_kept(const Scored& scored, const KeepSets& keep) {
  double sum = 0;
  for (std::uint32_t lane = 0; lane + 1 < scored.begin.size(); ++lane)
    for (std::uint32_t s : keep.lane(lane)) sum += scored.scores[scored.begin[lane] + s];
  return sum;
}

Scored pyramid_of(std::uint32_t layers, std::uint32_t slots, const RetainMethod& m) {
  Scored scored(2);
  for (std::uint32_t layer = 0; layer < layers; ++layer)
    scored.add(m, MadeUpLayer(2, 3, slots, layer).in);
  return scored;
}

TEST(Pyramid, FallsFromTheFirstLayerToTheLastAndAveragesToTheBudget) {
  const RetainMethod m = method_named("pyramidkv");
  for (std::uint32_t budget : {70u, 100u, 150u, 240u, 299u}) {
    const KeepSets keep = pyramid_of(10, 300, m).choose(m, budget);
    EXPECT_FALSE(keep.fell_back);
    EXPECT_GT(keep.lane(0).size(), keep.lane(18).size()) << budget;
    EXPECT_GE(keep.slots.size(), std::size_t{20} * (budget - 1)) << budget;
    EXPECT_LE(keep.slots.size(), std::size_t{20} * budget) << budget;
    for (std::uint32_t lane = 2; lane < 20; lane += 2)
      EXPECT_LE(keep.lane(lane).size(), keep.lane(lane - 2).size());
  }
}

TEST(Pyramid, WithASlopeOfOneIsSnapKv) {
  RetainMethod flat = method_named("pyramidkv");
  flat.pyramid_slope = 1;
  const RetainMethod snap = method_named("snapkv");
  const Scored scored = pyramid_of(5, 200, flat);
  EXPECT_EQ(scored.choose(flat, 90).slots, scored.choose(snap, 90).slots);
}

TEST(Pyramid, SaysSoWhenTheBudgetHasNoRoomForASlope) {
  const RetainMethod m = method_named("pyramidkv");
  const Scored scored = pyramid_of(4, 200, m);
  const KeepSets keep = scored.choose(m, 64);  // the window alone
  EXPECT_TRUE(keep.fell_back);
  EXPECT_EQ(keep.slots, scored.choose(method_named("snapkv"), 64).slots);
}

RetainMethod ada() { return {.name = "ada", .rule = BudgetRule::adaptive, .floor_share = 0.2}; }

TEST(Adaptive, GivesADispersedHeadMoreThanAPeakedOneAndLosesNoMass) {
  Scored scored(2);
  std::vector<float> peaked(100, 0.0001f), flat(100, 0.01f);
  for (int i = 0; i < 4; ++i) peaked[static_cast<std::size_t>(10 + 20 * i)] = 0.2476f;
  scored.lane(peaked);
  scored.lane(flat);
  const KeepSets keep = scored.choose(ada(), 30);
  EXPECT_EQ(keep.slots.size(), 60u);
  EXPECT_GE(keep.lane(0).size(), 6u);  // sure of a fifth
  EXPECT_GT(keep.lane(1).size(), keep.lane(0).size());
  EXPECT_GE(mass_kept(scored, keep), mass_kept(scored, scored.choose({.name = "uniform"}, 30)));
}

TEST(Adaptive, WithEqualHeadsIsUniform) {
  Scored scored(3);
  const std::vector<float> same = noise(90, 3);
  for (int h = 0; h < 3; ++h) scored.lane(same);
  EXPECT_EQ(scored.choose(ada(), 20).slots, scored.choose({.name = "uniform"}, 20).slots);
}

TEST(Adaptive, NeverStarvesAHead) {
  Scored scored(2);
  scored.lane(std::vector<float>(50, 1.0f));
  scored.lane(std::vector<float>(50, 0.0f));
  const KeepSets keep = scored.choose(ada(), 20);
  EXPECT_EQ(keep.lane(0).size(), 36u);
  EXPECT_EQ(keep.lane(1).size(), 4u);
}

TEST(Adaptive, DoesNotMoveBudgetBetweenLayers) {
  Scored scored(1);
  scored.lane(std::vector<float>(50, 1.0f));
  scored.lane(std::vector<float>(50, 0.0f));
  const KeepSets keep = scored.choose(ada(), 20);
  EXPECT_EQ(keep.lane(0).size(), keep.lane(1).size());
}

TEST(Global, LetsAllLanesCompete) {
  Scored scored(1);
  scored.lane({9, 8, 7, 6});
  scored.lane({5, 1, 1, 1});
  const KeepSets keep = scored.choose({.name = "g", .rule = BudgetRule::global}, 2);
  EXPECT_THAT(kept(keep, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(keep.lane(1).empty());
  const KeepSets sinks = scored.choose({.name = "g", .rule = BudgetRule::global, .sinks = 1}, 2);
  EXPECT_THAT(kept(sinks, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(kept(sinks, 1), ElementsAre(0));
}

TEST(Composite, KeepsEqualCountsWithinALayerWhileHeadsDifferInTokens) {
  Scored scored(2);
  scored.lane({1, 1, 1, 1, 1, 1});  // the first layer takes the best curve
  scored.lane({1, 1, 1, 1, 1, 1});
  scored.lane({9, 8, 0, 0, 0, 0});
  scored.lane({0, 0, 0, 0, 7, 8});
  scored.lane({2, 0, 0, 0, 0, 0});
  scored.lane({0, 0, 0, 2, 0, 0});
  const KeepSets keep = scored.choose({.name = "c", .rule = BudgetRule::composite}, 2);
  EXPECT_EQ(keep.slots.size(), 12u);
  for (std::uint32_t lane = 0; lane < 6; lane += 2)
    EXPECT_EQ(keep.lane(lane).size(), keep.lane(lane + 1).size());
  EXPECT_THAT(kept(keep, 2), ElementsAre(0, 1));
  EXPECT_THAT(kept(keep, 3), ElementsAre(4, 5));
  for (std::uint32_t lane = 2; lane < 6; ++lane)
    EXPECT_GE(keep.lane(0).size(), keep.lane(lane).size());
}

TEST(Split, KeepsWholeTheHeadsWithTheHighestGates) {
  RetainMethod duo = method_named("duo");
  duo.sinks = 2;
  duo.recent = 4;
  MadeUpLayer made(4, 1, 40, 1);
  const std::vector<float> gates = {0.1f, 0.9f, 0.2f, 0.8f};
  made.in.gates = gates;
  const KeepSets half = keep_of(duo, made.in, 23);  // room for 2 * 40 + 2 * 6
  EXPECT_EQ(half.lane(1).size(), 40u);
  EXPECT_EQ(half.lane(3).size(), 40u);
  EXPECT_THAT(kept(half, 0), ElementsAre(0, 1, 36, 37, 38, 39));
  EXPECT_EQ(kept(half, 0), kept(half, 2));
  // A streaming head is StreamingLLM.
  RetainMethod streaming = method_named("streaming");
  streaming.sinks = 2;
  EXPECT_EQ(kept(half, 0), kept(keep_of(streaming, made.in, 6), 0));
  const KeepSets none = keep_of(duo, made.in, 6);
  for (std::uint32_t lane = 0; lane < 4; ++lane) EXPECT_EQ(none.lane(lane).size(), 6u);
}

TEST(Split, WithoutGatesTakesHeadsThatLookAtTheMiddle) {
  RetainMethod duo = method_named("duo");
  duo.sinks = 2;
  duo.recent = 4;
  MadeUpLayer made(2, 2, 20, 1);
  std::fill(made.window_mass.begin(), made.window_mass.end(), 0.0f);
  for (std::uint32_t q : {0u, 1u}) made.window_mass[q * 20 + 19] = 1;  // local
  for (std::uint32_t q : {2u, 3u}) made.window_mass[q * 20 + 9] = 1;   // retrieves
  const KeepSets keep = keep_of(duo, made.in, 13);
  EXPECT_EQ(keep.lane(0).size(), 6u);
  EXPECT_EQ(keep.lane(1).size(), 20u);
}

// FastGen: what a head attends to decides what it keeps.
TEST(Profile, PicksTheCheapestSetThatRecoversEnough) {
  const RetainMethod fastgen = method_named("fastgen");
  const std::uint32_t slots = 40;
  MadeUpLayer made(4, 1, slots, 1);
  std::fill(made.window_mass.begin(), made.window_mass.end(), 0.0f);
  std::fill(made.total_mass.begin(), made.total_mass.end(), 0.0f);
  const auto give = [&](std::uint32_t head, std::uint32_t slot, float mass) {
    made.window_mass[head * slots + slot] += mass;
    made.total_mass[head * slots + slot] += mass;
  };
  give(0, 0, 1);                                                       // only the start token
  for (std::uint32_t s : {5u, 22u, 39u}) give(1, s, 0.33f);            // punctuation
  for (std::uint32_t s = 0; s < slots; ++s) give(2, s, 1.0f / slots);  // everything alike
  for (std::uint32_t s = 30; s < slots; ++s) give(3, s, 0.1f);         // recent tokens
  const KeepSets keep = keep_of(fastgen, made.in, 39);
  EXPECT_THAT(kept(keep, 0), ElementsAre(0));
  EXPECT_THAT(kept(keep, 1), ElementsAre(0, 5, 22, 39));
  EXPECT_EQ(keep.lane(2).size(), slots);
  EXPECT_LT(keep.lane(3).size(), slots);
  for (std::uint32_t head = 0; head < 4; ++head) {
    double recovered = 0, all = 0;
    for (std::uint32_t s = 0; s < slots; ++s) all += made.window_mass[head * slots + s];
    for (std::uint32_t s : keep.lane(head)) recovered += made.window_mass[head * slots + s];
    EXPECT_GE(recovered, 0.95 * all) << head;
  }
}

TEST(Profile, LowersItsThresholdToWhatCanBePaid) {
  const RetainMethod fastgen = method_named("fastgen");
  MadeUpLayer made(3, 2, 60, 4);
  for (std::uint32_t budget : {1u, 5u, 20u, 45u})
    EXPECT_LE(keep_of(fastgen, made.in, budget).slots.size(), 3 * budget);
}

// CriticalKV: of two slots with the same attention the one whose value matters more.
TEST(Critical, PromotesALargeValueOnlyInTheSecondStage) {
  RetainMethod m = {.name = "m",
                    .weigh = [](const RetainMethod&, const RetainInput&, std::span<float>) {},
                    .first_stage = 0.5,
                    .epsilon = 1e-4};
  Scored scored(1);
  scored.lane({8, 7, 6, 5, 4, 3, 2, 1});
  scored.weights.assign(8, 1);
  EXPECT_THAT(kept(scored.choose(m, 4), 0), ElementsAre(0, 1, 2, 3));
  scored.weights[5] = 10;
  EXPECT_THAT(kept(scored.choose(m, 4), 0), ElementsAre(0, 1, 2, 5));
  scored.weights[0] = scored.weights[1] = 0;  // the first stage does not look at values
  EXPECT_THAT(kept(scored.choose(m, 4), 0), ElementsAre(0, 1, 2, 5));
}

}  // namespace
}  // namespace quire
