#include "kv/device_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "kv/arena.h"

namespace quire {
namespace {

class DeviceMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = open_cuda();
    if (!device.ok()) GTEST_SKIP() << device.error().message;
    device_ = device.value();
    ASSERT_EQ(device_->api->make_stream(&stream_), 0);
    auto memory = reserve_device_memory(*device_, stream_, std::size_t{8} << 30);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    memory_ = std::move(memory.value());
  }
  std::uint64_t free_bytes() {
    CudaDeviceInfo info;
    EXPECT_EQ(device_->api->open(0, &info), 0);
    return info.free_bytes;
  }

  const CudaDevice* device_ = nullptr;
  CudaStream stream_ = nullptr;
  std::unique_ptr<Memory> memory_;
};

TEST_F(DeviceMemoryTest, HoldsWhatIsWrittenAndGivesBackWhatIsFreed) {
  const std::size_t page = memory_->page_bytes(), much = std::size_t{6} << 30;
  EXPECT_FALSE(memory_->on_host());
  const std::uint64_t before = free_bytes();
  ASSERT_TRUE(memory_->commit(page, much).ok());
  EXPECT_LE(free_bytes(), before - much);
  memory_->fill(page, page, std::byte{7});
  memory_->copy(3 * page, page, page);
  EXPECT_TRUE(memory_->filled(3 * page, page, std::byte{7}));
  memory_->fill(3 * page + 100, 1, std::byte{8});
  EXPECT_FALSE(memory_->filled(3 * page, page, std::byte{7}));
  memory_->decommit(page, much);
  EXPECT_GE(free_bytes(), before - (std::size_t{5} << 30))
      << "more than a few granules stay mapped";
  memory_.reset();
  EXPECT_GE(free_bytes() + (64 << 20), before);
}

TEST_F(DeviceMemoryTest, AnArenaLivesThere) {
  Arena arena(std::move(memory_), {.budget_bytes = std::uint64_t{1} << 30, .poison = true});
  const SizeClass c = arena.size_class(4 << 20);
  std::vector<ArenaOffset> held;
  while (const auto at = arena.allocate(c)) held.push_back(*at);
  EXPECT_EQ(held.size(), 256u);
  for (const ArenaOffset at : held) arena.free(at);
  EXPECT_TRUE(arena.check().ok());
}

}  // namespace
}  // namespace quire
