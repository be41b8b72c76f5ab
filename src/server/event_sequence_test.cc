#include "server/event_sequence.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

namespace quire {
namespace {

class EventSequenceTest : public ::testing::Test {
 protected:
  const std::string path_ =
      ::testing::TempDir() + "quire_events_" + std::to_string(::getpid()) + ".state";
  ~EventSequenceTest() override { std::remove(path_.c_str()); }
};

TEST_F(EventSequenceTest, NoNumberIsUsedTwice) {
  std::uint64_t last = 0;
  for (int start = 0; start < 3; ++start) {
    auto opened = EventSequence::open(path_);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    EventSequence& s = opened.value();
    EXPECT_EQ(s.next(), start * EventSequence::kReserved * 2);
    for (std::uint64_t i = 0; i < EventSequence::kReserved + 5; ++i) {
      const std::uint64_t n = s.take();
      EXPECT_TRUE(n > last || n == 0);
      last = n;
    }
    EXPECT_TRUE(s.written().ok());
  }
}

TEST_F(EventSequenceTest, ADamagedFileIsNotGuessedAt) {
  for (const char* text : {"", "12", "x\n", "-3\n", "99999999999999999999999\n"}) {
    std::ofstream(path_) << text;
    EXPECT_FALSE(EventSequence::open(path_).ok()) << text;
  }
  EXPECT_FALSE(EventSequence::open("/nowhere/at/all").ok());
}

TEST_F(EventSequenceTest, WithoutAFileNumbersStartAtZero) {
  EventSequence s = EventSequence::open("").value();
  EXPECT_EQ(s.take(), 0u);
  EXPECT_EQ(s.take(), 1u);
}

}  // namespace
}  // namespace quire
