#include "model/huge_buffer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace quire {
namespace {

TEST(HugeBuffer, IsZeroedAlignedAndWritable) {
  auto buffer = HugeBuffer::allocate(3'000'000, "a test");
  ASSERT_TRUE(buffer.ok()) << buffer.error().message;
  HugeBuffer memory = std::move(buffer.value());
  ASSERT_GE(memory.size(), 3'000'000u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.data()) % (2u << 20), 0u);
  for (const std::size_t at : {std::size_t{0}, memory.size() - 1}) {
    EXPECT_EQ(memory.data()[at], std::byte{0});
    memory.data()[at] = std::byte{1};
  }
}

TEST(HugeBuffer, NothingIsNothing) {
  auto buffer = HugeBuffer::allocate(0, "a test");
  ASSERT_TRUE(buffer.ok());
  EXPECT_EQ(buffer.value().data(), nullptr);
}

TEST(HugeBuffer, WhatTheSystemDoesNotHaveIsAnErrorThatSaysWhatToDo) {
  // More than a process can address: refused by the system, or before asking it.
  for (const std::size_t bytes : {std::size_t{1} << 60, SIZE_MAX - 5}) {
    const auto buffer = HugeBuffer::allocate(bytes, "the packed weights");
    ASSERT_FALSE(buffer.ok());
    EXPECT_EQ(buffer.error().code, Code::exhausted);
    EXPECT_THAT(buffer.error().message, testing::HasSubstr("the packed weights"));
    EXPECT_THAT(buffer.error().message, testing::HasSubstr("smaller"));
  }
}

}  // namespace
}  // namespace quire
