#include "kv/tier/store_tier.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "kv/tier/folder_store.h"
#include "kv/tier/tier_testing.h"

namespace quire {
namespace {

// Values in memory that the test can reach, and that fail when it says so.
struct SharedValues {
  std::mutex mutex;
  std::map<std::string, std::vector<std::byte>> values;
  bool down = false, full = false;
  std::uint64_t calls = 0;
  std::atomic<bool> hangs{false};
  std::atomic<int> hanging{0};  // calls
};

class MapStore final : public ValueStore {
 public:
  explicit MapStore(std::shared_ptr<SharedValues> shared) : shared_(std::move(shared)) {}
  Status contains(std::span<const std::string> names, std::span<std::uint8_t> there) override {
    return locked([&] {
      for (std::size_t i = 0; i < names.size(); ++i) there[i] = shared_->values.contains(names[i]);
    });
  }
  Status get(std::span<const std::string> names, const Got& got) override {
    return locked([&] {
      for (std::size_t i = names.size(); i-- > 0;)  // in any order
        if (const auto v = shared_->values.find(names[i]); v != shared_->values.end())
          got(i, v->second);
    });
  }
  Status put(std::span<const NamedValue> values) override {
    if (shared_->full) return Error{Code::exhausted, "full"};
    return locked([&] {
      for (const NamedValue& v : values)
        shared_->values[v.name].assign(v.value.begin(), v.value.end());
    });
  }
  Status erase(std::span<const std::string> names) override {
    return locked([&] {
      for (const std::string& name : names) shared_->values.erase(name);
    });
  }

 private:
  template <class Work>
  Status locked(const Work& work) {
    ++shared_->hanging;
    while (shared_->hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --shared_->hanging;
    const std::lock_guard lock(shared_->mutex);
    ++shared_->calls;
    if (shared_->down) return Error{Code::unavailable, "down"};
    work();
    return {};
  }
  std::shared_ptr<SharedValues> shared_;
};

struct StoreTierTest : testing::Test {
  std::shared_ptr<SharedValues> shared = std::make_shared<SharedValues>();
  DeploymentSecret secret = DeploymentSecret::random();
  Mailbox mailbox;

  StoreTierOptions options(const DeploymentSecret& of) {
    return {.open = [s = shared]() -> Result<std::unique_ptr<ValueStore>> {
              return std::unique_ptr<ValueStore>(std::make_unique<MapStore>(s));
            },
            .secret = of,
            .mailbox = &mailbox,
            .breaker = {.failures_max = 2, .wait_first = 20'000'000, .wait_max = 40'000'000}};
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }
};

TEST_F(StoreTierTest, WhatOneMachineWritesAnotherReads) {
  StoreTier one(options(secret)), two(options(secret));
  TierUser writer(one, mailbox, pause), reader(two, mailbox, pause);
  EXPECT_EQ(writer.write(1, "acme"), TierOutcome::ok);
  EXPECT_EQ(writer.write(1, "acme"), TierOutcome::already);
  EXPECT_EQ(reader.read(1, "acme"), TierOutcome::ok);
  EXPECT_EQ(reader.read(2, "acme"), TierOutcome::absent);
  EXPECT_EQ(two.stats().read_segments, 2u);
}

TEST_F(StoreTierTest, TenantsAndStrangersOpenNothing) {
  StoreTier ours(options(secret)), theirs(options(DeploymentSecret::random()));
  TierUser us(ours, mailbox, pause), them(theirs, mailbox, pause);
  EXPECT_EQ(us.write(1, "acme"), TierOutcome::ok);
  EXPECT_EQ(them.read(1, "acme"), TierOutcome::corrupt);  // and it is erased
  EXPECT_EQ(us.read(1, "acme"), TierOutcome::absent);
  EXPECT_EQ(us.write(1, "acme"), TierOutcome::ok);
  EXPECT_EQ(us.read(1, "other"), TierOutcome::corrupt);
}

TEST_F(StoreTierTest, EveryFlippedBitIsAMiss) {
  StoreTier tier(options(secret));
  TierUser user(tier, mailbox, pause);
  ASSERT_EQ(user.write(1), TierOutcome::ok);
  const std::vector<std::byte> good = shared->values.begin()->second;
  const std::string name = shared->values.begin()->first;
  std::uint64_t tried = 0;
  for (std::size_t byte = 0; byte < good.size(); byte += 3, ++tried) {
    auto bad = good;
    bad[byte] ^= std::byte{1} << (byte % 8);
    shared->values[name] = bad;
    EXPECT_NE(user.read(1), TierOutcome::ok) << byte;
  }
  shared->values[name] = good;
  EXPECT_EQ(user.read(1), TierOutcome::ok);
  EXPECT_EQ(tier.stats().corrupt, tried);
}

TEST_F(StoreTierTest, AValueUnderAnotherNameIsAMiss) {
  StoreTier tier(options(secret));
  TierUser user(tier, mailbox, pause);
  ASSERT_EQ(user.write(1), TierOutcome::ok);
  const std::vector<std::byte> first = shared->values.begin()->second;
  shared->values[TestBlock(2).name().hex()] = first;
  EXPECT_EQ(user.read(2), TierOutcome::corrupt);
  shared->values[TestBlock(3).name().hex()] = {first.begin(), first.end() - 1};
  EXPECT_EQ(user.read(3), TierOutcome::corrupt);
  shared->values[TestBlock(4).name().hex()] = {};
  EXPECT_EQ(user.read(4), TierOutcome::corrupt);
}

TEST_F(StoreTierTest, ADeadStoreIsNotAskedAgainAndComesBack) {
  StoreTier tier(options(secret));
  TierUser user(tier, mailbox, pause);
  ASSERT_EQ(user.write(1), TierOutcome::ok);
  shared->down = true;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(user.read(1), TierOutcome::failed);
  EXPECT_EQ(tier.stats().open, 0u);
  const std::uint64_t calls = shared->calls;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(user.read(1), TierOutcome::failed);
  EXPECT_LE(shared->calls, calls + 4);
  shared->down = false;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (user.read(1) != TierOutcome::ok) ASSERT_LT(std::chrono::steady_clock::now(), end);
  EXPECT_EQ(tier.stats().open, 1u);
  EXPECT_EQ(tier.stats().closings, 1u);
}

// While the breaker is open nobody waits for a try, however long it takes.
TEST_F(StoreTierTest, FindHasItsAnswerAtOnceWhileTheBreakerIsOpen) {
  StoreTier tier(options(secret));
  TierUser user(tier, mailbox, pause);
  ASSERT_EQ(user.write(1), TierOutcome::ok);
  shared->down = true;
  while (tier.stats().open != 0) EXPECT_EQ(user.read(1), TierOutcome::failed);
  shared->hangs = true;
  const auto began = std::chrono::steady_clock::now();
  while (shared->hanging == 0) {
    EXPECT_FALSE(user.find(1));
    ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  }
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(user.find(1));
  shared->down = false;
  shared->hangs = false;
  while (!user.find(1))
    ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
}

// A mounted folder whose server is gone: the call never comes back.
TEST_F(StoreTierTest, ACallThatHangsOpensTheBreakerAndFreesTheMemoryOfReads) {
  StoreTierOptions o = options(secret);
  o.patience = 20'000'000;
  auto tier = std::make_unique<StoreTier>(o);
  TierUser user(*tier, mailbox, pause);
  ASSERT_EQ(user.write(1), TierOutcome::ok);
  shared->hangs = true;
  const TestBlock block(1);
  std::vector<std::vector<std::byte>> to(block.segments().size());
  std::vector<SegmentRead> reads;
  for (std::uint32_t i = 0; i < to.size(); ++i) {
    to[i].resize(block.segments()[i].size());
    reads.push_back({block.identity(), i, to[i], ""});
  }
  std::vector<ReadEnd> ended;
  tier->read(reads, [&](std::span<const ReadEnd> ends, bool last) {
    EXPECT_TRUE(last);
    ended.insert(ended.end(), ends.begin(), ends.end());
  });
  const auto began = std::chrono::steady_clock::now();
  while (tier->stats().open != 0)
    ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(5));
  mailbox.drain();
  ASSERT_EQ(ended.size(), reads.size());
  for (const ReadEnd& e : ended) EXPECT_EQ(e.outcome, TierOutcome::failed);
  to.clear();  // the address sanitizer sees whoever writes there now
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(user.find(1));
  EXPECT_EQ(user.read(1), TierOutcome::failed);
  EXPECT_LE(shared->hanging, 1);
  shared->hangs = false;
  while (!user.find(1))
    ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
  EXPECT_EQ(user.read(1), TierOutcome::ok);
  // The end of a tier does not wait for a call that hangs.
  shared->hangs = true;
  tier->find({}, [](std::span<const std::uint8_t>) {});
  while (shared->hanging == 0) pause();
  tier.reset();
  shared->hangs = false;
  while (shared->hanging > 0) pause();
}

TEST_F(StoreTierTest, AFullStoreIsReadAndNotAskedToStoreTheSameAgain) {
  StoreTier tier(options(secret));
  TierUser user(tier, mailbox, pause);
  ASSERT_EQ(user.write(1), TierOutcome::ok);
  shared->full = true;
  for (std::uint64_t i = 2; i < 8; ++i) EXPECT_EQ(user.write(i), TierOutcome::full);
  EXPECT_EQ(user.read(1), TierOutcome::ok);
  EXPECT_EQ(tier.stats().open, 1u);
  EXPECT_EQ(tier.stats().refused, 6u);
}

// A folder for one test.
struct Folder {
  std::string path = [] {
    char name[] = "/tmp/quire-store-XXXXXX";
    return std::string(::mkdtemp(name));
  }();
  ~Folder() { std::filesystem::remove_all(path); }
};

TEST_F(StoreTierTest, AFolderKeepsValues) {
  const Folder folder;
  StoreTierOptions o = options(secret);
  o.open = [&] { return open_folder_store(folder.path, {}); };
  StoreTier tier(o);
  TierUser user(tier, mailbox, pause);
  EXPECT_EQ(user.write(1), TierOutcome::ok);
  EXPECT_EQ(user.read(1), TierOutcome::ok);
  std::filesystem::remove_all(folder.path);
  EXPECT_EQ(user.read(1), TierOutcome::failed);
}

TEST(FolderStore, AddressesAreRead) {
  const auto place = parse_folder_url("file:///mnt/kv?max=100GiB&patience=200");
  ASSERT_TRUE(place.ok());
  EXPECT_EQ(place.value().path, "/mnt/kv");
  EXPECT_EQ(place.value().capacity_bytes, std::uint64_t{100} << 30);
  EXPECT_EQ(place.value().patience, 200'000'000);
  EXPECT_EQ(parse_folder_url("file:///mnt/kv").value().capacity_bytes, 0u);
  for (const char* bad : {"file://mnt", "file:///", "file:///a?max=x", "file:///a?max=5",
                          "file:///a?least=5", "file:///a?patience=0"})
    EXPECT_FALSE(parse_folder_url(bad).ok()) << bad;
}

TEST(FolderStore, ABoundHoldsAndTheOldestLeave) {
  const Folder folder;
  auto opened = open_folder_store(folder.path, {.capacity_bytes = 1000});
  ASSERT_TRUE(opened.ok());
  ValueStore& store = *opened.value();
  const std::vector<std::byte> value(150);
  for (int i = 0; i < 20; ++i) {
    const NamedValue v{"a" + std::to_string(100 + i), value};
    ASSERT_TRUE(store.put({&v, 1}).ok());
    std::uint64_t bytes = 0;
    for (const auto& f : std::filesystem::recursive_directory_iterator(folder.path))
      if (f.is_regular_file()) bytes += f.file_size();
    EXPECT_LE(bytes, 1000u);
  }
  const std::vector<std::string> names = {"a100", "a119"};
  std::uint8_t there[2];
  ASSERT_TRUE(store.contains(names, there).ok());
  EXPECT_EQ(there[0], 0);
  EXPECT_EQ(there[1], 1);
}

}  // namespace
}  // namespace quire
