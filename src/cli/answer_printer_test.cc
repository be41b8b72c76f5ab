#include "cli/answer_printer.h"

#include <gtest/gtest.h>

namespace quire::cli {
namespace {

std::string printed(std::initializer_list<std::string_view> pieces, bool cut) {
  testing::internal::CaptureStdout();
  AnswerPrinter printer;
  for (const std::string_view piece : pieces) printer.print(piece);
  printer.end(cut);
  std::string seen = testing::internal::GetCapturedStdout();
  EXPECT_EQ(seen, printer.text());
  return seen;
}

TEST(AnswerPrinter, HalfACharacterAtACutIsLeftOut) {
  EXPECT_EQ(printed({"a", "b\xef\xbf\xbd"}, true), "ab");
  EXPECT_EQ(printed({"a", "b\xef\xbf\xbd"}, false), "ab\xef\xbf\xbd");
  EXPECT_EQ(printed({"a\xef\xbf\xbd", "b"}, true),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_EQ(printed({}, true), "");
}

TEST(AnswerPrinter, ACutNamesItsReason) {
  SamplingOptionsCli asked;
  EXPECT_EQ(why_cut(7, asked), "stopped after 7 tokens: the context is full");
  asked.tokens_max = 8;
  EXPECT_EQ(why_cut(7, asked), "stopped after 7 tokens: the context is full");
  EXPECT_EQ(why_cut(8, asked), "stopped after 8 tokens; -n for more");
  asked.tokens_max = 1;
  EXPECT_EQ(why_cut(1, asked), "stopped after 1 token; -n for more");
}

}  // namespace
}  // namespace quire::cli
