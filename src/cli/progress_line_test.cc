#include "cli/progress_line.h"

#include <gtest/gtest.h>

namespace quire::cli {
namespace {

TEST(ProgressLine, WhatIsQuickSaysNothing) {
  testing::internal::CaptureStderr();
  {
    ProgressLine line("measured", "layers");
    for (std::uint64_t i = 0; i <= 10; ++i) line.at(i, 10);
    EXPECT_LT(line.seconds(), 1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ProgressLine, TimesAreWrittenAsPeopleSayThem) {
  EXPECT_EQ(in_words(0.25), "0.2 s");
  EXPECT_EQ(in_words(14.4), "14 s");
  EXPECT_EQ(in_words(300), "5 min");
  EXPECT_EQ(in_words(7560), "2.1 h");
}

}  // namespace
}  // namespace quire::cli
