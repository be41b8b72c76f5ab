#include "engine/load_plan.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

// A prompt token costs `ns`, wherever it is.
PrefillCost prefill_of(double ns) {
  PrefillCost cost;
  cost.add(512, 256, 512 * ns);
  return cost;
}

constexpr LoadSpan kSpan{.from = 2, .to = 34, .tokens_per_block = 32, .block_bytes = 1'000'000};

TEST(LoadPlan, LoadsAllFromAFastTier) {
  // 32 blocks: 32 ms to load, 1 s to compute.
  const LoadPlan plan =
      plan_load(kSpan, {.first_byte_s = 1e-4, .bytes_per_s = 1e9}, prefill_of(1e6), true);
  EXPECT_EQ(plan.first, 2u);
  EXPECT_TRUE(plan.waits);
  EXPECT_NEAR(plan.seconds, 0.0321, 1e-6);
}

TEST(LoadPlan, MeetsInTheMiddle) {
  // As long to load as to compute: half of each.
  const LoadPlan plan =
      plan_load(kSpan, {.first_byte_s = 1e-9, .bytes_per_s = 32e6}, prefill_of(1e6), true);
  EXPECT_NEAR(plan.first, 18, 1);
  EXPECT_FALSE(plan.waits);
  EXPECT_NEAR(plan.seconds, 0.5, 0.05);
}

TEST(LoadPlan, LeavesASlowTierAlone) {
  const TierCost slow{.first_byte_s = 5, .bytes_per_s = 1e9};
  EXPECT_EQ(plan_load(kSpan, slow, prefill_of(1e6), true).first, 34u);
  EXPECT_EQ(plan_load(kSpan, slow, prefill_of(1e6), false).first, 34u);
  // What others have asked for comes first.
  const TierCost busy{.first_byte_s = 1e-4, .bytes_per_s = 1e9, .queued_bytes = 5'000'000'000};
  EXPECT_EQ(plan_load(kSpan, busy, prefill_of(1e6), true).first, 34u);
}

TEST(LoadPlan, LoadsAllWhereOthersCompute) {
  const LoadPlan plan =
      plan_load(kSpan, {.first_byte_s = 1e-9, .bytes_per_s = 40e6}, prefill_of(1e6), false);
  EXPECT_EQ(plan.first, 2u);
  EXPECT_TRUE(plan.waits);
}

TEST(LoadPlan, TwoTiersCostWhatTheirSharesCost) {
  const TierCost disk{.first_byte_s = 1e-4, .bytes_per_s = 1e9};
  const TierCost store{.first_byte_s = 1e-3, .bytes_per_s = 1e8, .queued_bytes = 10'000'000};
  const TierShare only[] = {{disk, 32'000'000}, {store, 0}};
  EXPECT_EQ(joint_cost(only).bytes_per_s, 1e9);
  EXPECT_EQ(joint_cost(only).queued_bytes, 0u);
  const TierShare both[] = {{disk, 16'000'000}, {store, 16'000'000}};
  const TierCost joint = joint_cost(both);
  EXPECT_EQ(joint.first_byte_s, 1e-3);
  // 16 ms, 160 ms, and 100 ms of what others have asked the store for.
  EXPECT_NEAR(32e6 / joint.bytes_per_s, 0.176, 1e-9);
  EXPECT_NEAR(static_cast<double>(joint.queued_bytes) / joint.bytes_per_s, 0.1, 1e-6);
  // One that has not been measured does not make the other one unknown.
  const TierShare fresh[] = {{disk, 16'000'000}, {{}, 16'000'000}};
  EXPECT_GT(joint_cost(fresh).bytes_per_s, 3e8);
  EXPECT_LT(joint_cost(fresh).bytes_per_s, 1e9);
}

TEST(LoadPlan, LoadsWhereNothingIsKnown) {
  const LoadPlan plan = plan_load(kSpan, {}, PrefillCost(), true);
  EXPECT_EQ(plan.first, 2u);
  EXPECT_TRUE(plan.waits);
}

// Never later than computing all of it, by its own estimate.
TEST(LoadPlan, IsNeverSlowerThanComputing) {
  for (double rate = 1e5; rate < 1e11; rate *= 3)
    for (double first : {1e-5, 1e-3, 0.1, 1.0, 10.0})
      for (double ns : {1e3, 1e5, 1e6, 1e7}) {
        const PrefillCost prefill = prefill_of(ns);
        const LoadPlan plan =
            plan_load(kSpan, {.first_byte_s = first, .bytes_per_s = rate}, prefill, true);
        const double all = prefill.ns(64, 34 * 32) * 1e-9,
                     front = prefill.ns(64, plan.first * 32) * 1e-9;
        if (plan.first < kSpan.to) {
          EXPECT_LE(std::max(plan.seconds, front), all * (1 + 1.0 / 32)) << rate << ' ' << first;
        }
      }
}

}  // namespace
}  // namespace quire
