#include "kv/tier/disk_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "kv/tier/disk_testing.h"

namespace quire {
namespace {

TEST(DiskStore, GivesBackWhatWasWritten) {
  FaultyFiles disk;
  TestStore store(disk);
  for (std::uint64_t n = 0; n < 50; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
  for (std::uint64_t n = 0; n < 50; ++n) EXPECT_EQ(store.read(n), TierOutcome::ok);
  EXPECT_EQ(store.read(50), TierOutcome::absent);
  EXPECT_EQ(store.write(7), TierOutcome::already);
}

TEST(DiskStore, AWarmStartNeedsNoSnapshot) {
  FaultyFiles disk;
  const auto check = [&](bool keep_index) {
    disk.reboot(FaultyFiles::Crash::killed, 1);
    if (!keep_index) {
      ASSERT_TRUE(disk.remove("kv/index.qidx").ok());
    }
    TestStore store(disk);
    EXPECT_TRUE(store.store().problems().empty());
    for (std::uint64_t n = 0; n < 300; ++n) EXPECT_EQ(store.read(n), TierOutcome::ok) << n;
  };
  {
    TestStore store(disk, {.volume_bytes = 64 << 10});
    for (std::uint64_t n = 0; n < 300; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
    EXPECT_GT(store.store().volume_count(), 2u);
    ASSERT_TRUE(store.store().save(true).ok());
  }
  check(true);
  check(false);  // footers, and heads of the last volume
}

TEST(DiskStore, APartOfARecordCanBeRead) {
  FaultyFiles disk;
  TestStore store(disk, {}, {.tokens = 32, .segments = 30, .segment_bytes = 24 << 10});
  ASSERT_EQ(store.write(1), TierOutcome::ok);
  const TestBlock block = store.block(1);
  for (const std::uint32_t s : {0u, 17u, 29u}) {
    std::vector<std::byte> to(24 << 10);
    const SegmentRead read{block.identity(), s, to};
    store.store().read({&read, 1}, [&](ReadEnd e) { EXPECT_EQ(e.outcome, TierOutcome::ok); });
    EXPECT_EQ(to, block.segments()[s]);
  }
  std::vector<std::byte> to(24 << 10);
  const SegmentRead none{block.identity(), 30, to};
  store.store().read({&none, 1}, [&](ReadEnd e) { EXPECT_EQ(e.outcome, TierOutcome::corrupt); });
}

TEST(DiskStore, AnotherBlockUnderTheSameNameIsAMiss) {
  FaultyFiles disk;
  TestStore store(disk);
  ASSERT_EQ(store.write(1), TierOutcome::ok);
  auto other = std::make_shared<RecordIdentity>(*store.block(1).identity());
  other->tokens[2] += 1;
  std::vector<std::byte> to(96);
  const SegmentRead read{other, 0, to};
  store.store().read({&read, 1}, [&](ReadEnd e) { EXPECT_EQ(e.outcome, TierOutcome::corrupt); });
  EXPECT_EQ(to, std::vector<std::byte>(96));
}

TEST(DiskStore, WhatIsErasedStaysAway) {
  FaultyFiles disk;
  {
    TestStore store(disk);
    for (std::uint64_t n = 0; n < 10; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
    const RecordName name = store.block(4).name();
    store.store().erase({&name, 1});
    EXPECT_EQ(store.read(4), TierOutcome::absent);
  }
  disk.reboot(FaultyFiles::Crash::killed, 1);
  TestStore store(disk);
  EXPECT_EQ(store.read(4), TierOutcome::absent);
  EXPECT_EQ(store.read(5), TierOutcome::ok);
  EXPECT_TRUE(store.store().check().empty());
  EXPECT_EQ(store.write(4), TierOutcome::ok);
  EXPECT_EQ(store.read(4), TierOutcome::ok);
}

TEST(DiskStore, TheBoundIsHardAndUsedRecordsStay) {
  constexpr std::uint64_t kCapacity = 1 << 20;
  for (const std::size_t segment_bytes : {16u, 2000u}) {  // many records, or few
    FaultyFiles disk;
    TestStore store(disk, {.capacity_bytes = kCapacity},
                    {.segments = 2, .segment_bytes = segment_bytes});
    std::uint64_t next = 0;
    for (int batch = 0; batch < 300; ++batch) {
      std::vector<TestBlock> blocks;
      std::vector<RecordWrite> writes;
      for (int i = 0; i < 40; ++i) blocks.push_back(store.block(next++));
      for (const TestBlock& b : blocks) writes.push_back(write_of(b));
      std::vector<TierOutcome> outcomes(writes.size());
      store.store().write(writes, outcomes);
      EXPECT_EQ(std::ranges::count(outcomes, TierOutcome::ok), 40);
      EXPECT_EQ(store.read(1), TierOutcome::ok) << batch;  // hot
      ASSERT_TRUE(store.store().save(false).ok());
      ASSERT_LE(disk.bytes_max(), kCapacity) << batch;
    }
    EXPECT_GT(disk.bytes(), kCapacity * 3 / 5);
    EXPECT_GT(store.store().stats().reclaimed_records, 1000u);
    const TestBlock huge(1 << 20, {.segments = 1, .segment_bytes = kCapacity / 2});
    EXPECT_EQ(store.write(huge), TierOutcome::full);
  }
}

TEST(DiskStore, ASmallerBoundHoldsAfterTheStart) {
  FaultyFiles disk;
  {
    TestStore store(disk, {.volume_bytes = 128 << 10}, {.segments = 2, .segment_bytes = 2000});
    for (std::uint64_t n = 0; n < 1000; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
    ASSERT_TRUE(store.store().save(true).ok());
  }
  EXPECT_GT(disk.bytes(), 4u << 20);
  TestStore store(disk, {.capacity_bytes = 1 << 20}, {.segments = 2, .segment_bytes = 2000});
  EXPECT_LE(disk.bytes(), 1u << 20);
  EXPECT_GT(store.store().stats().records, 50u);
  std::uint64_t found = 0;
  for (std::uint64_t n = 0; n < 1000; ++n) found += store.read(n) == TierOutcome::ok;
  EXPECT_EQ(found, store.store().stats().records);
}

// Then numbers had nine digits, and the next start did not find these files again.
TEST(DiskStore, AFileWithTheHighestNumberDoesNoHarm) {
  FaultyFiles disk;
  { const TestStore made(disk); }
  ASSERT_TRUE(disk.write_whole("kv/segments/99999999.qseg", "x", true).ok());
  {
    TestStore store(disk, {.volume_bytes = 64 << 10});
    for (std::uint64_t n = 0; n < 200; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
    EXPECT_GT(store.store().volume_count(), 3u);
  }
  TestStore store(disk);
  for (std::uint64_t n = 0; n < 200; ++n) EXPECT_EQ(store.read(n), TierOutcome::ok);
  ASSERT_TRUE(store.store().clear().ok());
  EXPECT_TRUE(disk.list("kv/segments").value().empty());
}

// A file of a terabyte that holds nothing was read page by page.
TEST(DiskStore, AHugeFileIsNotRead) {
  std::string folder = (std::filesystem::temp_directory_path() / "quire-huge-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const auto files = system_files();
  const DiskStoreOptions options{.folder = {.path = folder + "/kv"}, .capacity_bytes = 4 << 20};
  ASSERT_TRUE(DiskStore::open(*files, options).ok());
  const std::string file = folder + "/kv/segments/00000007.qseg";
  ASSERT_TRUE(files->write_whole(file, "x", false).ok());
  std::error_code error;
  std::filesystem::resize_file(file, std::uint64_t{1} << 40, error);
  if (!error) {
    const auto began = std::chrono::steady_clock::now();
    auto store = DiskStore::open(*files, options);
    ASSERT_TRUE(store.ok());
    EXPECT_FALSE(store.value()->problems().empty());
    EXPECT_FALSE(std::filesystem::exists(file));  // beyond the bound, so it leaves
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  }
  std::filesystem::remove_all(folder);
}

TEST(DiskStore, ShortAndInterruptedCallsAreContinued) {
  FaultyFiles disk;
  disk.plan.short_chance = 0.4;
  disk.plan.interrupt_chance = 0.4;
  TestStore store(disk, {}, {.segments = 3, .segment_bytes = 20000});
  for (std::uint64_t n = 0; n < 30; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
  for (std::uint64_t n = 0; n < 30; ++n) EXPECT_EQ(store.read(n), TierOutcome::ok);
}

TEST(DiskStore, AFullDiskBreaksTheStoreAndNothingElse) {
  FaultyFiles disk;
  TestStore store(disk);
  for (std::uint64_t n = 0; n < 10; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
  disk.plan.space_bytes = disk.bytes();
  EXPECT_EQ(store.write(10), TierOutcome::failed);
  ASSERT_NE(store.store().broken(), nullptr);
  EXPECT_NE(store.store().broken()->message.find("No space"), std::string::npos);
  EXPECT_EQ(store.read(3), TierOutcome::ok);  // reading goes on
  disk.plan = {};
  store.reopen();
  for (std::uint64_t n = 0; n < 10; ++n) EXPECT_EQ(store.read(n), TierOutcome::ok);
  EXPECT_EQ(store.write(10), TierOutcome::ok);
}

TEST(DiskStore, ABadSectorCostsOneRecord) {
  FaultyFiles disk;
  TestStore store(disk);
  for (std::uint64_t n = 0; n < 3; ++n) EXPECT_EQ(store.write(n), TierOutcome::ok);
  disk.plan.error_at = disk.calls();
  disk.plan.error = EIO;
  EXPECT_EQ(store.read(1), TierOutcome::failed);
  EXPECT_EQ(store.store().broken(), nullptr);
  EXPECT_EQ(store.read(1), TierOutcome::absent);
  EXPECT_EQ(store.read(2), TierOutcome::ok);
  disk.plan.every_read = EIO;
  EXPECT_EQ(store.read(2), TierOutcome::failed);
  EXPECT_NE(store.store().broken(), nullptr);
}

TEST(DiskFolder, OneProcessAtATime) {
  FaultyFiles disk;
  TestStore store(disk);
  const auto second = DiskStore::open(disk, {.folder = {.path = "kv"}});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another process"), std::string::npos);
  EXPECT_TRUE(DiskStore::open(disk, {.folder = {.path = "kv", .read_only = true}}).ok());
}

TEST(DiskFolder, ForeignAndNewerFoldersAreRefused) {
  FaultyFiles disk;
  ASSERT_TRUE(disk.make_folder("home").ok());
  ASSERT_TRUE(disk.write_whole("home/letter.txt", "x", true).ok());
  EXPECT_EQ(DiskFolder::open(disk, {.path = "home"}).error().code, Code::invalid);
  EXPECT_EQ(DiskFolder::open(disk, {.path = ""}).error().code, Code::invalid);
}

TEST(DiskFolder, ASecretFromElsewhereIsUsed) {
  FaultyFiles disk;
  const DeploymentSecret secret = DeploymentSecret::random();
  {
    const auto folder = DiskFolder::open(disk, {.path = "kv", .secret = secret});
    ASSERT_TRUE(folder.ok());
    EXPECT_EQ(folder.value().secret(), secret);
  }
  const auto other = DiskFolder::open(disk, {.path = "kv"});
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other.value().problems().empty());
}

}  // namespace
}  // namespace quire
