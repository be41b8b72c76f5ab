#include "kv/retain/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kv/retain/testing.h"

namespace quire {
namespace {
using testing::HasSubstr;

constexpr std::uint32_t kDim = 4, kSlots = 12;

struct Lane {
  std::vector<float> keys = noise(kSlots * kDim, 1), values = noise(kSlots * kDim, 2);
  std::vector<std::uint32_t> keep = {0, 1, 3, 4, 5, 7, 8, 10, 11};
  std::vector<float> mass = std::vector<float>(kSlots, 1.0f);
  MergeState state;

  void merge(std::string_view name, std::uint64_t seed = 0) {
    find_merger(name).value()->merge({.slots = kSlots,
                                      .key_dim = kDim,
                                      .value_dim = kDim,
                                      .keep = keep,
                                      .mass = mass,
                                      .seed = seed},
                                     state, keys, values);
  }
  float value(std::uint32_t slot, std::uint32_t c) const { return values[slot * kDim + c]; }
};

TEST(EveryMerger, ChangesNothingWhenNothingLeaves) {
  for (const Merger* m : mergers()) {
    Lane lane;
    lane.keep = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    lane.merge(m->name);
    EXPECT_EQ(lane.keys, Lane().keys) << m->name;
    EXPECT_EQ(lane.values, Lane().values) << m->name;
  }
}

TEST(EveryMerger, LeavesKeysAloneUnlessItsRowSaysOtherwise) {
  for (const Merger* m : mergers()) {
    Lane lane;
    lane.merge(m->name);
    EXPECT_NE(lane.values, Lane().values) << m->name;
    EXPECT_EQ(lane.keys != Lane().keys, m->moves_keys) << m->name;
  }
}

TEST(EveryMerger, SurvivesALaneOfWhichNothingStays) {
  for (const Merger* m : mergers()) {
    Lane lane;
    lane.keep = {};
    lane.merge(m->name);
    EXPECT_EQ(lane.values, Lane().values) << m->name;
  }
}

TEST(Cam, WithCertaintyTheTargetsGrowByExactlyWhatLeaves) {
  Lane lane;  // equal mass: every probability is one
  lane.merge("cam");
  for (std::uint32_t c = 0; c < kDim; ++c) {
    double before = 0, after = 0;
    for (std::uint32_t s = 0; s < kSlots; ++s) before += Lane().value(s, c);
    for (std::uint32_t s : lane.keep) after += lane.value(s, c);
    EXPECT_NEAR(after, before, 1e-5);
  }
}

TEST(Cam, GivesOnlyToTokensThatFollow) {
  Lane lane;
  lane.merge("cam");
  for (std::uint32_t c = 0; c < kDim; ++c) EXPECT_EQ(lane.value(1, c), Lane().value(1, c));
  EXPECT_NE(lane.value(3, 0), Lane().value(3, 0));
}

TEST(Cam, MergesAsOftenAsTheMassSays) {
  int merged = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    Lane lane;
    lane.keep = {0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11};
    lane.mass[9] = 0.3f;
    lane.merge("cam", seed);
    merged += lane.values != Lane().values;
  }
  EXPECT_NEAR(merged / 2000.0, 0.3, 0.04);
}

TEST(Cam, NeverMergesWhatGotNoAttention) {
  Lane lane;
  std::fill(lane.mass.begin(), lane.mass.end(), 0.0f);
  lane.merge("cam");
  EXPECT_EQ(lane.values, Lane().values);
}

TEST(D2o, ADuplicateMergesToItself) {
  Lane lane;
  for (std::uint32_t c = 0; c < kDim; ++c) {
    lane.keys[2 * kDim + c] = lane.keys[7 * kDim + c];
    lane.values[2 * kDim + c] = lane.values[7 * kDim + c];
  }
  lane.keep = {0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const Lane before = lane;
  lane.merge("d2o");
  for (std::size_t i = 0; i < lane.keys.size(); ++i) {
    EXPECT_NEAR(lane.keys[i], before.keys[i], 1e-6);
    EXPECT_NEAR(lane.values[i], before.values[i], 1e-6);
  }
}

// Slots 0 and 1 stay as the axes; what leaves has a known cosine to the nearer one.
TEST(D2o, ItsThresholdFollowsTheMeanOfSimilarities) {
  Lane lane;
  const auto set = [&](std::uint32_t slot, double cosine) {
    for (std::uint32_t c = 0; c < kDim; ++c) lane.keys[slot * kDim + c] = 0;
    lane.keys[slot * kDim] = static_cast<float>(cosine);
    lane.keys[slot * kDim + 2] = static_cast<float>(std::sqrt(1 - cosine * cosine));
  };
  for (std::uint32_t s = 0; s < kSlots; ++s) set(s, 1);
  lane.keep = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  set(10, 0.9);
  set(11, 0.5);
  std::vector<float> before = lane.values;
  lane.merge("d2o");
  EXPECT_NEAR(lane.state.threshold, 0.7, 1e-5);
  for (std::uint32_t c = 0; c < kDim; ++c)  // only the similar one; ties go to the lower slot
    EXPECT_NEAR(lane.value(0, c), (before[c] + 0.9f * before[10 * kDim + c]) / 2, 1e-5);
  set(0, 1);
  set(10, 0.8);
  set(11, 0.8);
  lane.merge("d2o");
  EXPECT_NEAR(lane.state.threshold, 0.75, 1e-5);
  set(0, 1);
  set(10, 0.2);
  set(11, 0.4);
  lane.merge("d2o");
  EXPECT_NEAR(lane.state.threshold, 0.525, 1e-5);
}

TEST(ValueMerge, FoldsIntoTheMostSimilarKeyBySimilarityAndSize) {
  Lane lane;
  lane.keep = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  for (std::uint32_t c = 0; c < kDim; ++c) lane.keys[11 * kDim + c] = 2 * lane.keys[6 * kDim + c];
  const Lane before = lane;
  lane.merge("value");
  const auto size = [&](std::uint32_t slot) {
    double sum = 0;
    for (std::uint32_t c = 0; c < kDim; ++c) sum += std::pow(before.value(slot, c), 2);
    return std::sqrt(sum);
  };
  const double w = size(11) / (size(11) + size(6));
  for (std::uint32_t c = 0; c < kDim; ++c)
    EXPECT_NEAR(lane.value(6, c), (before.value(6, c) + w * before.value(11, c)) / (1 + w), 1e-5);
  for (std::uint32_t s : {0u, 5u, 10u}) EXPECT_EQ(lane.value(s, 0), before.value(s, 0));
}

TEST(FindMerger, NamesWhatThereIs) {
  EXPECT_THAT(find_merger("blend").error().message, HasSubstr("cam"));
}

}  // namespace
}  // namespace quire
