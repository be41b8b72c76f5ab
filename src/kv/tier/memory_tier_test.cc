#include "kv/tier/memory_tier.h"

#include <gtest/gtest.h>

#include "kv/tier/tier_testing.h"

namespace quire {
namespace {

struct MemoryTierTest : testing::Test {
  ManualClock clock;
  Mailbox mailbox;

  TierUser user(MemoryTier& tier) {
    return TierUser(tier, mailbox, [&] {
      clock.advance(tier.next_due() - clock.now());
      tier.poll();
    });
  }
};

TEST_F(MemoryTierTest, GivesBackWhatWasWrittenAtTheTimeItTakes) {
  MemoryTier tier({.first_byte_ns = 1000, .bytes_per_s = 1e9}, clock, mailbox);
  TierUser u = user(tier);
  EXPECT_FALSE(u.find(1));
  EXPECT_EQ(clock.now(), 1000);
  EXPECT_EQ(u.write(1), TierOutcome::ok);
  EXPECT_EQ(clock.now(), 2000 + 192);
  EXPECT_TRUE(u.find(1));
  EXPECT_EQ(u.read(1), TierOutcome::ok);
  EXPECT_EQ(clock.now(), 3192 + 2 * (1000 + 96));
  EXPECT_EQ(u.write(1), TierOutcome::already);
  u.erase(1);
  EXPECT_EQ(u.read(1), TierOutcome::absent);
  u.flush();
}

TEST_F(MemoryTierTest, NothingEndsBeforeItsTime) {
  MemoryTier tier({.first_byte_ns = 1000}, clock, mailbox);
  bool ended = false;
  tier.find({}, [&](std::span<const std::uint8_t>) { ended = true; });
  clock.advance(999);
  tier.poll();
  mailbox.drain();
  EXPECT_FALSE(ended);
  clock.advance(1);
  tier.poll();
  EXPECT_FALSE(ended);  // the mailbox decides when it is seen
  mailbox.drain();
  EXPECT_TRUE(ended);
}

TEST_F(MemoryTierTest, TroubleIsAMiss) {
  MemoryTier tier({.fail_chance = 0.2, .corrupt_chance = 0.3, .lose_chance = 0.2}, clock, mailbox);
  TierUser u = user(tier);
  std::uint64_t ok = 0;
  for (std::uint64_t n = 0; n < 200; ++n) {
    u.write(n);
    ok += u.read(n) == TierOutcome::ok;  // aborts on wrong bytes
  }
  EXPECT_GT(ok, 20u);
  EXPECT_GT(tier.stats().corrupt, 20u);
  tier.set_down(true);
  EXPECT_EQ(u.read(1), TierOutcome::failed);
  EXPECT_EQ(u.write(1000), TierOutcome::failed);
  EXPECT_FALSE(u.find(1));
  EXPECT_EQ(tier.stats().open, 0u);
}

TEST_F(MemoryTierTest, HoldsItsBound) {
  MemoryTier tier({.traits = {.name = "disk", .capacity_bytes = 5000}}, clock, mailbox);
  TierUser u = user(tier);
  for (std::uint64_t n = 0; n < 50; ++n) {
    EXPECT_EQ(u.write(n), TierOutcome::ok);
    EXPECT_LE(tier.stats().stored_bytes, 5000u);
  }
  EXPECT_EQ(u.read(49), TierOutcome::ok);
  EXPECT_EQ(u.read(0), TierOutcome::absent);
}

TEST_F(MemoryTierTest, SealedRecordsAreTheirTenantsAlone) {
  MemoryTier tier({.secret = DeploymentSecret::random()}, clock, mailbox);
  TierUser u = user(tier);
  EXPECT_EQ(u.write(1, "a"), TierOutcome::ok);
  EXPECT_EQ(u.read(1, "a"), TierOutcome::ok);
  EXPECT_NE(u.read(1, "b"), TierOutcome::ok);
}

}  // namespace
}  // namespace quire
