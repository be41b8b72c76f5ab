// Kills a store at every write call, tears and drops what was not synced, and looks at what a new
// process finds. QUIRE_TIER_KILLS adds that many random kills.
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/sanitized.h"
#include "kv/tier/disk_testing.h"

namespace quire {
namespace {

struct Workload {
  TestStoreOptions options;
  std::uint64_t blocks;
  bool erases;
};
// Many small volumes that come and go; and one where nothing leaves.
constexpr Workload kPressed{{.capacity_bytes = 600 << 10, .volume_bytes = 64 << 10}, 90, true};
constexpr Workload kRoomy{{.volume_bytes = 64 << 10}, 60, false};
constexpr TestBlockShape kShape{.tokens = 4, .segments = 3, .segment_bytes = 3000};

// What was in the index when the last call began that wrote nothing itself.
std::set<std::uint64_t> run_workload(FaultyFiles& disk, const Workload& workload,
                                     std::uint64_t seed) {
  std::set<std::uint64_t> stored;
  TestStore store(disk, workload.options, kShape);
  Random random(seed);
  for (std::uint64_t n = 0; n < workload.blocks && store.is_open();) {
    std::vector<TestBlock> blocks;
    std::vector<RecordWrite> writes;
    for (std::uint64_t i = 1 + random.below(4); i > 0; --i)
      blocks.push_back(store.block(n + i - 1));
    for (const TestBlock& b : blocks) writes.push_back(write_of(b));
    std::vector<TierOutcome> outcomes(writes.size());
    store.store().write(writes, outcomes);
    for (std::size_t i = 0; i < outcomes.size(); ++i)
      if (outcomes[i] == TierOutcome::ok) stored.insert(n + blocks.size() - 1 - i);
    n += blocks.size();
    if (random.chance(0.3)) store.read(random.below(n));
    if (workload.erases && random.chance(0.1)) {
      const RecordName name = store.block(random.below(n)).name();
      store.store().erase({&name, 1});
    }
    if (random.chance(0.2)) (void)store.store().save(random.chance(0.5));
    if (random.chance(0.1)) store.reopen();
  }
  return stored;
}

void check_after(FaultyFiles& disk, const Workload& workload,
                 const std::set<std::uint64_t>& must_be_there) {
  {
    TestStore store(disk, workload.options, kShape);
    ASSERT_TRUE(store.is_open());
    EXPECT_LE(disk.bytes(), workload.options.capacity_bytes);
    for (std::uint64_t n = 0; n < workload.blocks; ++n) {
      const TierOutcome outcome = store.read(n);  // aborts on wrong bytes
      EXPECT_TRUE(outcome == TierOutcome::ok || !must_be_there.contains(n)) << n;
    }
    for (std::uint64_t n = 0; n < workload.blocks; ++n) {
      const TierOutcome outcome = store.write(n);
      EXPECT_TRUE(outcome == TierOutcome::ok || outcome == TierOutcome::already);
    }
    EXPECT_EQ(store.read(workload.blocks - 1), TierOutcome::ok);
    EXPECT_LE(disk.bytes(), workload.options.capacity_bytes);
    const auto damage = store.store().check();
    ASSERT_TRUE(store.store().repair(damage).ok());
  }
  TestStore store(disk, workload.options, kShape);
  EXPECT_TRUE(store.store().problems().empty());
  EXPECT_TRUE(store.store().check().empty());
  for (const std::string& path : disk.paths()) EXPECT_FALSE(path.ends_with(".tmp")) << path;
}

void kill_once(const Workload& workload, std::uint64_t seed, std::uint64_t call,
               FaultyFiles::Crash crash) {
  FaultyFiles disk(seed + call);
  disk.plan.kill_at = call;
  const auto stored = run_workload(disk, workload, seed);
  disk.reboot(crash, seed ^ call);
  const bool kept = crash == FaultyFiles::Crash::killed && !workload.erases;
  check_after(disk, workload, kept ? stored : std::set<std::uint64_t>());
}

class DiskCrash : public testing::TestWithParam<std::tuple<bool, FaultyFiles::Crash>> {};

TEST_P(DiskCrash, AtEveryWriteCallNoBlockIsWrongAndTheNextStartWorks) {
  const auto [pressed, crash] = GetParam();
  const Workload& workload = pressed ? kPressed : kRoomy;
  FaultyFiles untroubled;
  run_workload(untroubled, workload, 1);
  ASSERT_GT(untroubled.write_calls(), 80u);
  const std::uint64_t step = kSanitized ? 7 : 1;
  for (std::uint64_t call = 0; call <= untroubled.write_calls(); call += step) {
    SCOPED_TRACE(call);
    kill_once(workload, 1, call, crash);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DiskCrash,
                         testing::Combine(testing::Bool(),
                                          testing::Values(FaultyFiles::Crash::killed,
                                                          FaultyFiles::Crash::power_loss)));

TEST(DiskCrash, RandomKills) {
  const char* const wanted = std::getenv("QUIRE_TIER_KILLS");
  const std::uint64_t kills = wanted ? std::strtoull(wanted, nullptr, 10) : 50;
  Random random(17);
  for (std::uint64_t i = 0; i < kills; ++i) {
    const std::uint64_t seed = random.next(), call = random.below(250);
    SCOPED_TRACE(testing::Message() << "seed " << seed << " call " << call);
    kill_once(random.chance(0.5) ? kPressed : kRoomy, seed, call,
              random.chance(0.5) ? FaultyFiles::Crash::killed : FaultyFiles::Crash::power_loss);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace quire
