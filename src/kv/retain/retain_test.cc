// What holds for every method of the table, with and without wrappers.
#include "kv/retain/retain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "base/file.h"
#include "kv/retain/merge.h"
#include "kv/retain/testing.h"

namespace quire {
namespace {
using testing::ElementsAre, testing::HasSubstr;

constexpr std::uint32_t kLayers = 3, kHeads = 2, kGroup = 3, kSlots = 150;

std::vector<RetainMethod> all_methods() {
  std::vector<RetainMethod> all;
  for (const RetainMethod* m : retain_methods()) {
    all.push_back(*m);
    for (const char* prefix : {"ada-", "critical-", "critical-ada-"})
      if (auto wrapped = find_retain_method(prefix + std::string(m->name)); wrapped.ok())
        all.push_back(wrapped.value());
  }
  return all;
}

Scored scored_by(const RetainMethod& method, std::uint64_t seed) {
  Scored scored(kHeads);
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    MadeUpLayer made(kHeads, kGroup, kSlots, seed + 10 * layer);
    made.in.layer = layer;
    scored.add(method, made.in);
  }
  return scored;
}

TEST(EveryMethod, KeepsEverythingWhenTheBudgetCoversTheLane) {
  for (const RetainMethod& m : all_methods())
    for (std::uint32_t budget : {kSlots, kSlots + 1, 4 * kSlots}) {
      const KeepSets keep = scored_by(m, 1).choose(m, budget);
      for (std::uint32_t lane = 0; lane < kLayers * kHeads; ++lane)
        EXPECT_EQ(keep.lane(lane).size(), kSlots) << m.name;
    }
}

TEST(EveryMethod, StaysWithinItsBudgetAndUsesItUnlessItSaysOtherwise) {
  for (const RetainMethod& m : all_methods())
    for (std::uint32_t budget : {1u, 3u, 8u, 40u, 75u, 149u}) {
      const KeepSets keep = scored_by(m, 2).choose(m, budget);
      EXPECT_LE(keep.slots.size(), budget * kLayers * kHeads) << m.name << ' ' << budget;
      // A pyramid rounds each layer down; heads are kept whole; a profile stops when it has enough.
      std::uint32_t least = budget;
      if (m.rule == BudgetRule::pyramid) least = budget - 1;
      if (m.rule == BudgetRule::split || m.rule == BudgetRule::profile) least = 0;
      EXPECT_GE(keep.slots.size(), least * kLayers * kHeads) << m.name << ' ' << budget;
    }
}

TEST(EveryMethod, GivesAscendingSlotsThatExist) {
  for (const RetainMethod& m : all_methods()) {
    const KeepSets keep = scored_by(m, 3).choose(m, 37);
    for (std::uint32_t lane = 0; lane < kLayers * kHeads; ++lane) {
      const auto slots = keep.lane(lane);
      EXPECT_EQ(std::adjacent_find(slots.begin(), slots.end(), std::greater_equal<>()), slots.end())
          << m.name;
      EXPECT_TRUE(slots.empty() || slots.back() < kSlots) << m.name;
    }
  }
}

TEST(EveryMethod, LeavesThePagesItsRowSays) {
  for (const RetainMethod& m : all_methods()) {
    const KeepSets keep = scored_by(m, 4).choose(m, 75);
    for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::uint32_t lane = layer * kHeads;
      if (m.pages != RetainPages::ragged) {
        EXPECT_EQ(keep.lane(lane).size(), keep.lane(lane + 1).size()) << m.name;
      }
      if (m.pages == RetainPages::same_slots) {
        EXPECT_EQ(kept(keep, lane), kept(keep, lane + 1)) << m.name;
      }
    }
  }
}

TEST(EveryMethod, ProtectsItsFirstTokensAtEveryBudget) {
  for (const RetainMethod& m : all_methods())
    for (std::uint32_t budget : {1u, 2u, 6u, 60u}) {
      const KeepSets keep = scored_by(m, 5).choose(m, budget);
      for (std::uint32_t lane = 0; lane < kLayers * kHeads; ++lane)
        for (std::uint32_t s = 0; s < std::min(m.sinks, budget); ++s)
          EXPECT_EQ(keep.lane(lane)[s], s) << m.name << ' ' << budget;
    }
}

TEST(EveryMethod, ReadsOnlyWhatItsRowAsksFor) {
  for (const RetainMethod& m : all_methods()) {
    MadeUpLayer made(kHeads, kGroup, kSlots, 6);
    const std::vector<std::uint32_t> whole = keep_of(m, made.in, 40).slots;
    RetainInput in = made.in;
    if (!asks(m.needs, Signal::keys)) in.keys = {};
    if (!asks(m.needs, Signal::values)) in.values = {};
    if (!asks(m.needs, Signal::window_mass)) in.window_mass = {};
    if (!asks(m.needs, Signal::total_mass)) in.total_mass = {};
    if (!asks(m.needs, Signal::peak_mass)) in.peak_mass = {};
    if (!asks(m.needs, Signal::below_counts)) in.below_counts = {};
    if (!asks(m.needs, Signal::query_moments)) in.query_mean = in.query_covariance = {};
    if (!asks(m.needs, Signal::output_norms)) in.output_norms = {};
    if (!asks(m.needs, Signal::marks)) in.marks = {};
    EXPECT_EQ(keep_of(m, in, 40).slots, whole) << m.name;
  }
}

TEST(EveryMethod, KeepsTheSameSlotsAloneOrBesideOtherLayers) {
  for (const RetainMethod& m : all_methods()) {
    if (m.rule != BudgetRule::uniform && m.rule != BudgetRule::adaptive) continue;
    MadeUpLayer made(kHeads, kGroup, kSlots, 7);
    const KeepSets alone = keep_of(m, made.in, 40);
    Scored two(kHeads);
    MadeUpLayer other(kHeads, kGroup, kSlots, 8);
    two.add(m, made.in);
    two.add(m, other.in);
    const KeepSets beside = two.choose(m, 40);
    EXPECT_EQ(kept(alone, 0), kept(beside, 0)) << m.name;
    EXPECT_EQ(kept(alone, 1), kept(beside, 1)) << m.name;
  }
}

TEST(EveryMethod, HasANameASourceAndASummaryOfItsOwn) {
  std::vector<std::string_view> names;
  for (const RetainMethod* m : retain_methods()) {
    EXPECT_FALSE(m->source.empty() || m->summary.empty()) << m->name;
    names.push_back(m->name);
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(EveryMethod, IsOnThePageAboutMethods) {
  const std::string page = read_file("docs/methods.md").value();
  for (const RetainMethod* m : retain_methods())
    EXPECT_THAT(page, HasSubstr("\n| `" + std::string(m->name) + "` |"));
  for (const Merger* m : mergers())
    EXPECT_THAT(page, HasSubstr("\n| `" + std::string(m->name) + "` |"));
}

TEST(FindRetainMethod, NamesWhatThereIsWhenAskedForWhatThereIsNot) {
  const auto none = find_retain_method("snap");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, Code::not_found);
  EXPECT_THAT(none.error().message, HasSubstr("snapkv"));
}

TEST(FindRetainMethod, RefusesWrappersThatWouldMeanNothing) {
  for (const char* name : {"ada-streaming", "ada-kvzip", "ada-ada-snapkv", "critical-knorm",
                           "critical-critical-snapkv", "ada-pyramidkv"}) {
    const auto refused = find_retain_method(name);
    ASSERT_FALSE(refused.ok()) << name;
    EXPECT_EQ(refused.error().code, Code::invalid) << name;
  }
}

TEST(Choose, GivesTiesToTheLowerSlot) {
  const RetainMethod plain = {.name = "plain"};
  Scored scored(1);
  scored.lane({1, 2, 2, 2, 1});
  EXPECT_THAT(kept(scored.choose(plain, 2), 0), ElementsAre(1, 2));
  EXPECT_THAT(kept(scored.choose(plain, 4), 0), ElementsAre(0, 1, 2, 3));
}

TEST(Choose, TakesWhatIsNotANumberForTheLowest) {
  const RetainMethod plain = {.name = "plain"};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Scored scored(1);
  scored.lane({nan, -1e30f, nan, 5});
  EXPECT_THAT(kept(scored.choose(plain, 2), 0), ElementsAre(1, 3));
}

TEST(Choose, LetsFirstTokensGoBeforeLastOnesWhenBothDoNotFit) {
  const RetainMethod plain = {.name = "plain", .sinks = 2, .recent = 3};
  Scored scored(1);
  scored.lane({0, 0, 9, 9, 9, 0, 0, 0});
  EXPECT_THAT(kept(scored.choose(plain, 3), 0), ElementsAre(0, 1, 7));
  EXPECT_THAT(kept(scored.choose(plain, 6), 0), ElementsAre(0, 1, 2, 5, 6, 7));
}

TEST(Choose, ServesLanesOfDifferentLengths) {
  const RetainMethod plain = {.name = "plain"};
  Scored scored(1);
  scored.lane({3, 1, 2, 5});
  scored.lane({1});
  scored.lane({});
  const KeepSets keep = scored.choose(plain, 2);
  EXPECT_THAT(kept(keep, 0), ElementsAre(0, 3));
  EXPECT_THAT(kept(keep, 1), ElementsAre(0));
  EXPECT_TRUE(keep.lane(2).empty());
}

TEST(BudgetSlots, RoundsDownButNeverToNothing) {
  EXPECT_EQ(budget_slots(10, 0.25), 2u);
  EXPECT_EQ(budget_slots(3, 0.01), 1u);
  EXPECT_EQ(budget_slots(7, 1), 7u);
  EXPECT_EQ(budget_slots(0, 0.5), 0u);
}

}  // namespace
}  // namespace quire
