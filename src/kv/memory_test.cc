#include "kv/memory.h"

#include <gtest/gtest.h>

#include <cstring>

namespace quire {
namespace {

std::unique_ptr<Memory> reserve(std::size_t bytes, std::size_t page = 65536) {
  return std::move(reserve_host_memory({.bytes = bytes, .page_bytes = page}).value());
}

TEST(HostMemory, ReservesFarMoreThanTheMachineHas) {
  auto memory = reserve(std::size_t{1} << 42, kMemoryPage);
  EXPECT_EQ(memory->reserved_bytes(), std::size_t{1} << 42);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->base()) % kMemoryPage, 0u);
}

TEST(HostMemory, CommittedPagesHoldBytesAndReturnZeroedAfterDecommit) {
  auto memory = reserve(1 << 20);
  ASSERT_TRUE(memory->commit(65536, 131072).ok());
  memory->fill(65536, 131072, std::byte{7});
  EXPECT_TRUE(memory->filled(65536, 131072, std::byte{7}));
  memory->base()[65536 + 99999] = std::byte{8};
  EXPECT_FALSE(memory->filled(65536, 131072, std::byte{7}));
  memory->decommit(65536, 131072);
  ASSERT_TRUE(memory->commit(65536, 131072).ok());
  EXPECT_TRUE(memory->filled(65536, 131072, std::byte{0}));
}

TEST(HostMemory, CopyMovesExactlyTheRange) {
  auto memory = reserve(1 << 20);
  ASSERT_TRUE(memory->commit(0, 131072).ok());
  memory->fill(0, 256, std::byte{1});
  memory->copy(65536, 0, 256);
  EXPECT_TRUE(memory->filled(65536, 256, std::byte{1}));
  EXPECT_TRUE(memory->filled(65536 + 256, 256, std::byte{0}));
}

TEST(HostMemory, DecommittedPagesAreOutOfReach) {
  auto memory = reserve(1 << 20);
  ASSERT_TRUE(memory->commit(0, 65536).ok());
  memory->decommit(0, 65536);
  EXPECT_DEATH({ *const_cast<volatile std::byte*>(memory->base()) = std::byte{1}; }, "");
}

TEST(HostMemory, OddPageSizesAndNothingAtAllAreRefused) {
  EXPECT_EQ(reserve_host_memory({.bytes = 1 << 20, .page_bytes = 1000}).error().code,
            Code::invalid);
  EXPECT_EQ(reserve_host_memory({.bytes = 0}).error().code, Code::invalid);
  EXPECT_EQ(reserve_host_memory({.bytes = SIZE_MAX / 4}).error().code, Code::exhausted);
}

TEST(FailingMemory, FailsAfterSoManyPagesAndRecovers) {
  FailingMemory memory(reserve(1 << 20));
  memory.fail_after(2);
  EXPECT_FALSE(memory.commit(0, 3 * 65536).ok());
  EXPECT_TRUE(memory.commit(0, 2 * 65536).ok());
  EXPECT_FALSE(memory.commit(2 * 65536, 65536).ok());
  EXPECT_EQ(memory.failures(), 2u);
  memory.never_fail();
  EXPECT_TRUE(memory.commit(2 * 65536, 65536).ok());
  EXPECT_EQ(memory.committed_bytes(), 3u * 65536);
}

}  // namespace
}  // namespace quire
