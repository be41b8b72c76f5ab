// Damage of every kind to a folder: each is noticed, and no read gives wrong bytes.
// QUIRE_TIER_FLIPS sets how many single bits are flipped.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/sanitized.h"
#include "kv/tier/disk_testing.h"

namespace quire {
namespace {

constexpr TestStoreOptions kOptions{.volume_bytes = 64 << 10};
constexpr TestBlockShape kSmall{.tokens = 4, .segments = 2, .segment_bytes = 700};
constexpr std::uint64_t kBlocks = 60;  // one volume is finished, one is not

FaultyFiles filled_disk() {
  FaultyFiles disk;
  TestStore store(disk, kOptions, kSmall);
  for (std::uint64_t n = 0; n < kBlocks; ++n) CHECK(store.write(n) == TierOutcome::ok);
  const RecordName name = store.block(3).name();
  store.store().erase({&name, 1});
  CHECK(store.store().save(true).ok());
  CHECK(store.store().volume_count() >= 2);
  store.store().read({}, [](ReadEnd) {});
  return disk;
}

// Whether anything is noticed; aborts on wrong bytes.
bool noticed(FaultyFiles& disk, bool repair) {
  disk.reboot(FaultyFiles::Crash::killed, 1);
  bool found = false;
  {
    TestStore store(disk, kOptions, kSmall);
    found |= !store.store().problems().empty();
    std::vector<VolumeDamage> damage = store.store().check();
    found |= !damage.empty();
    for (std::uint64_t n = 0; n < kBlocks; ++n) found |= n != 3 && store.read(n) != TierOutcome::ok;
    if (repair) {
      EXPECT_TRUE(store.store().repair(damage).ok());
    }
  }
  if (repair) {
    TestStore store(disk, kOptions, kSmall);
    EXPECT_TRUE(store.store().problems().empty());
    EXPECT_TRUE(store.store().check().empty());
    // One bit costs one record at most, unless it was needed to find the others.
    EXPECT_GE(store.store().stats().records, kBlocks - 2);
  }
  return found;
}

TEST(DiskDamage, NothingIsNoticedInAHealthyFolder) {
  FaultyFiles disk = filled_disk();
  EXPECT_FALSE(noticed(disk, true));
}

TEST(DiskDamage, EveryFlippedBitIsNoticed) {
  const FaultyFiles healthy = filled_disk();
  const char* const wanted = std::getenv("QUIRE_TIER_FLIPS");
  const std::uint64_t flips = wanted ? std::strtoull(wanted, nullptr, 10) : kSanitized ? 200 : 3000;
  Random random(5);
  const std::vector<std::string> paths = FaultyFiles(healthy).paths();
  for (std::uint64_t i = 0; i < flips; ++i) {
    FaultyFiles disk = healthy;
    // Small files as often as large ones.
    std::string& bytes = disk.content(paths[random.below(paths.size())]);
    if (bytes.empty()) continue;
    const std::uint64_t bit = random.below(bytes.size() * 8);
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_TRUE(noticed(disk, i % 16 == 0)) << bit;
    if (HasFailure()) return;
  }
}

// Reads alone, without fsck before them, as a server does it.
TEST(DiskDamage, ReadsOfADamagedFolderAreRightOrMisses) {
  const FaultyFiles healthy = filled_disk();
  Random random(6);
  std::uint64_t misses = 0;
  const std::uint64_t rounds = kSanitized ? 50 : 1000;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    FaultyFiles disk = healthy;
    const bool with_index = random.chance(0.5);
    if (!with_index) disk.content("kv/index.qidx").clear();
    std::string& bytes =
        disk.content("kv/segments/0000000" + std::to_string(1 + random.below(2)) + ".qseg");
    for (int k = 0; k < 8; ++k) {
      const std::uint64_t bit = random.below(bytes.size() * 8);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    }
    disk.reboot(FaultyFiles::Crash::killed, 1);
    TestStore store(disk, kOptions, kSmall);
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      const TierOutcome outcome = store.read(n);
      misses += outcome != TierOutcome::ok;
      // What was found to be damaged is gone.
      if (outcome != TierOutcome::ok) {
        EXPECT_EQ(store.read(n), TierOutcome::absent);
      }
    }
  }
  EXPECT_GT(misses, rounds);
}

TEST(DiskDamage, RecordsMovedToOtherPlacesAreMisses) {
  FaultyFiles disk = filled_disk();
  std::string& bytes = disk.content("kv/segments/00000001.qseg");
  DiskEntry one, two;
  {
    disk.reboot(FaultyFiles::Crash::killed, 1);
    TestStore store(disk, kOptions, kSmall);
    const auto entries = store.store().index().entries_of(1);
    one = entries[0];
    two = entries[5];
    ASSERT_EQ(one.units, two.units);
  }
  std::swap_ranges(bytes.begin() + static_cast<std::ptrdiff_t>(one.first_byte()),
                   bytes.begin() + static_cast<std::ptrdiff_t>(one.first_byte() + one.bytes()),
                   bytes.begin() + static_cast<std::ptrdiff_t>(two.first_byte()));
  disk.reboot(FaultyFiles::Crash::killed, 1);
  TestStore store(disk, kOptions, kSmall);
  std::uint64_t ok = 0;
  for (std::uint64_t n = 0; n < kBlocks; ++n) ok += store.read(n) == TierOutcome::ok;
  EXPECT_EQ(ok, kBlocks - 3);
}

TEST(DiskDamage, HalfOfAnOlderCopyIsServedWhereItIsRight) {
  FaultyFiles older = filled_disk(), disk = older;
  {
    disk.reboot(FaultyFiles::Crash::killed, 1);
    TestStore store(disk, kOptions, kSmall);
    for (std::uint64_t n = kBlocks; n < 3 * kBlocks; ++n)
      EXPECT_EQ(store.write(n), TierOutcome::ok);
    ASSERT_TRUE(store.store().save(true).ok());
  }
  for (const std::string& path : older.paths()) {
    FaultyFiles mixed = disk;
    mixed.reboot(FaultyFiles::Crash::killed, 1);
    mixed.content(path) = older.content(path);
    TestStore store(mixed, kOptions, kSmall);
    std::uint64_t ok = 0;
    for (std::uint64_t n = 0; n < 3 * kBlocks; ++n) ok += store.read(n) == TierOutcome::ok;
    EXPECT_GE(ok, kBlocks - 1) << path;
  }
  for (const std::string& path : disk.paths()) {  // a file is missing
    if (path.ends_with("lock")) continue;
    FaultyFiles mixed = disk;
    mixed.reboot(FaultyFiles::Crash::killed, 1);
    ASSERT_TRUE(mixed.remove(path).ok());
    TestStore store(mixed, kOptions, kSmall);
    std::uint64_t ok = 0;
    for (std::uint64_t n = 0; n < 3 * kBlocks; ++n) ok += store.read(n) == TierOutcome::ok;
    EXPECT_GE(ok, kBlocks) << path;
  }
}

TEST(DiskDamage, TruncatedFilesAreMisses) {
  const FaultyFiles healthy = filled_disk();
  Random random(7);
  for (int i = 0; i < 200; ++i) {
    FaultyFiles disk = healthy;
    const auto paths = disk.paths();
    std::string& bytes = disk.content(paths[random.below(paths.size())]);
    bytes.resize(random.below(bytes.size() + 1));
    disk.reboot(FaultyFiles::Crash::killed, 1);
    TestStore store(disk, kOptions, kSmall);
    for (std::uint64_t n = 0; n < kBlocks; ++n) store.read(n);
    EXPECT_EQ(store.write(1000), TierOutcome::ok);
    EXPECT_EQ(store.read(1000), TierOutcome::ok);
  }
}

}  // namespace
}  // namespace quire
