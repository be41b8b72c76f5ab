#include "kv/tier/disk_tier.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <mutex>

#include "base/sanitized.h"
#include "kv/tier/tier_testing.h"
#include "kv/tier/tiers.h"

namespace quire {
namespace {

void nap() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

class DiskTierTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "quire-tier-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<DiskTier> open(std::unique_ptr<Files> files = nullptr) {
    auto tier = DiskTier::open({.store = {.folder = {.path = files ? "kv" : folder_}},
                                .mailbox = &mailbox_,
                                .log =
                                    [this](const std::string& line) {
                                      const std::lock_guard lock(mutex_);
                                      log_ += line + '\n';
                                    },
                                .files = std::move(files),
                                .reopen_ns = 1'000'000});
    CHECK(tier.ok());
    return std::move(tier.value());
  }
  std::string log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  std::string folder_, log_;
  std::mutex mutex_;
  Mailbox mailbox_;
};

TEST_F(DiskTierTest, SurvivesARestart) {
  {
    const auto tier = open();
    TierUser user(*tier, mailbox_, nap);
    for (std::uint64_t n = 0; n < 20; ++n) EXPECT_EQ(user.write(n), TierOutcome::ok);
    for (std::uint64_t n = 0; n < 20; ++n) EXPECT_EQ(user.read(n), TierOutcome::ok);
    EXPECT_FALSE(user.find(20));
    user.flush();
    EXPECT_GT(tier->cost().first_byte_s, 0);
    EXPECT_EQ(tier->cost().queued_bytes, 0u);
  }
  const auto tier = open();
  TierUser user(*tier, mailbox_, nap);
  EXPECT_GT(tier->cost().first_byte_s, 0);  // remembered
  for (std::uint64_t n = 0; n < 20; ++n) {
    EXPECT_TRUE(user.find(n));
    EXPECT_EQ(user.read(n), TierOutcome::ok);
  }
  user.erase(3);
  EXPECT_EQ(user.read(3), TierOutcome::absent);
  const auto info = std::filesystem::status(folder_ + "/secret").permissions();
  EXPECT_EQ(info, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

TEST_F(DiskTierTest, ASecondProcessIsRefused) {
  const auto tier = open();
  const auto second =
      open_tier({.place = "disk:" + folder_, .capacity_bytes = 1 << 20, .mailbox = &mailbox_});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("another process"), std::string::npos);
  EXPECT_FALSE(open_tier({.place = "tape:x", .mailbox = &mailbox_}).ok());
}

TEST_F(DiskTierTest, AFolderOthersCanWriteToIsRefused) {
  std::filesystem::permissions(folder_, std::filesystem::perms::all);
  const auto tier = open_tier({.place = "disk:" + folder_, .mailbox = &mailbox_});
  ASSERT_FALSE(tier.ok());
  EXPECT_NE(tier.error().message.find("others can write"), std::string::npos);
}

TEST_F(DiskTierTest, ADiskThatSaysNoClosesItAndItOpensAgain) {
  auto owned = std::make_unique<FaultyFiles>();
  FaultyFiles& disk = *owned;
  const auto tier = open(std::move(owned));
  TierUser user(*tier, mailbox_, nap);
  EXPECT_EQ(user.write(1), TierOutcome::ok);
  disk.fail_writes(ENOSPC);
  EXPECT_EQ(user.write(2), TierOutcome::failed);
  EXPECT_EQ(user.write(3), TierOutcome::failed);
  EXPECT_EQ(user.read(1), TierOutcome::failed);
  EXPECT_FALSE(user.find(1));
  disk.fail_writes(0);
  while (!user.find(1)) nap();
  EXPECT_EQ(user.read(1), TierOutcome::ok);
  EXPECT_EQ(user.write(2), TierOutcome::ok);
  user.flush();
  EXPECT_EQ(tier->stats().closings, 1u);
  EXPECT_NE(log().find("No space left"), std::string::npos) << log();
  EXPECT_NE(log().find("open again"), std::string::npos) << log();
}

TEST_F(DiskTierTest, EveryCallIsAnsweredWhenItEnds) {
  std::uint64_t answers = 0;
  const TestBlock block(1);
  std::vector<std::byte> to(96);
  {
    const auto tier = open();
    for (int i = 0; i < 100; ++i) {
      const RecordWrite write = write_of(block);
      const SegmentRead read{block.identity(), 0, to};
      const RecordName name = block.name();
      tier->write({&write, 1}, [&](std::span<const TierOutcome>) { ++answers; });
      tier->read({&read, 1}, [&](std::span<const ReadEnd>, bool last) { answers += last; });
      tier->find({&name, 1}, [&](std::span<const std::uint8_t>) { ++answers; });
      tier->flush([&] { ++answers; });
    }
  }
  mailbox_.drain();
  EXPECT_EQ(answers, 400u);
}

TEST_F(DiskTierTest, WritesBeyondTheQueueAreRefusedAtOnce) {
  const auto tier = DiskTier::open(
      {.store = {.folder = {.path = folder_}}, .mailbox = &mailbox_, .write_queue_bytes = 100});
  ASSERT_TRUE(tier.ok());
  TierUser user(*tier.value(), mailbox_, nap);
  EXPECT_EQ(user.write(1), TierOutcome::full);
}

// The start after a kill, with 100,000 records: from the snapshot, and from footers and heads.
TEST_F(DiskTierTest, AStartWith100000RecordsTakesLessThanASecond) {
  const std::uint64_t records = kSanitized ? 2000 : 100'000;
  const TestBlockShape shape{.tokens = 4, .segments = 1, .segment_bytes = 256};
  const auto files = system_files();
  const auto timed_open = [&] {
    const SteadyClock clock;
    const Nanoseconds start = clock.now();
    auto store = DiskStore::open(*files, {.folder = {.path = folder_}});
    const Nanoseconds took = clock.now() - start;
    CHECK(store.ok());
    EXPECT_EQ(store.value()->index().size(), records);
    return static_cast<double>(took) * 1e-9;
  };
  {
    auto store = DiskStore::open(*files, {.folder = {.path = folder_}, .volume_bytes = 8 << 20});
    ASSERT_TRUE(store.ok());
    for (std::uint64_t n = 0; n < records; n += 1000) {
      std::vector<TestBlock> blocks;
      std::vector<RecordWrite> writes;
      for (std::uint64_t i = 0; i < 1000; ++i) blocks.emplace_back(n + i, shape);
      for (const TestBlock& b : blocks) writes.push_back(write_of(b));
      std::vector<TierOutcome> outcomes(writes.size());
      store.value()->write(writes, outcomes);
      EXPECT_EQ(std::ranges::count(outcomes, TierOutcome::ok), 1000);
    }
    EXPECT_LE(store.value()->index().memory_bytes(), records * 80);
    ASSERT_TRUE(store.value()->save(false).ok());
  }
  const double snapshot_s = timed_open();
  ASSERT_TRUE(files->remove(folder_ + "/index.qidx").ok());
  const double footers_s = timed_open();
  std::printf("%llu records: %.0f ms from the snapshot, %.0f ms without\n",
              static_cast<unsigned long long>(records), snapshot_s * 1e3, footers_s * 1e3);
  EXPECT_LE(snapshot_s, 1.0);
  EXPECT_LE(footers_s, 1.0);
}

TEST(Mailbox, LettersOfManyThreadsAllArriveInEachThreadsOrder) {
  std::atomic<int> woken{0};
  Mailbox mailbox([&] { ++woken; });
  constexpr int kThreads = 4, kLetters = 2000;
  std::vector<int> next(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kLetters; ++i) mailbox.post([&, t, i] { CHECK(next[t]++ == i); });
    });
  std::size_t read = 0;
  while (read < kThreads * kLetters) read += mailbox.drain();
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(mailbox.empty());
  EXPECT_EQ(woken.load(), kThreads * kLetters);
  mailbox.post([] { FAIL(); });  // is not run by the destructor
}

}  // namespace
}  // namespace quire
