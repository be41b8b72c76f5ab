#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string problem(std::string_view text) {
  const auto parsed = parse_json(text);
  return parsed.ok() ? "fine" : parsed.error().message;
}

TEST(JsonProblem, WhatIsWrongIsSaidInWords) {
  EXPECT_EQ(problem("{}"), "fine");
  EXPECT_THAT(problem("[{"), HasSubstr("not JSON at line 1, column 3: unexpected end of input"));
  EXPECT_THAT(problem("{\n\"a\": tru}"),
              HasSubstr("not JSON at line 2, column 9: invalid literal"));
  EXPECT_THAT(problem(""), HasSubstr("not JSON at line 1, column 1: unexpected end of input"));
  EXPECT_THAT(problem(std::string(200, '[')), HasSubstr("nested deeper than"));
  for (const char* text :
       {"[{", "{\"a\": tru}", "", "\x01", "[1,]", "\"\\ud800\"", "1e999", "nul"}) {
    EXPECT_THAT(problem(text), Not(HasSubstr("exception"))) << text;
    EXPECT_THAT(problem(text), Not(HasSubstr("syntax error"))) << text;
    EXPECT_THAT(problem(text), Not(HasSubstr("::"))) << text;
  }
}

}  // namespace
}  // namespace quire
