#include "text/regex_counts.h"

#include <gtest/gtest.h>

#include <regex>

#include "base/random.h"

namespace quire {
namespace {

TEST(RegexCounts, GroupsAreWrittenOut) {
  EXPECT_EQ(unfold_counts("(ab){2}c"), "(ab)(ab)c");
  EXPECT_EQ(unfold_counts("(ab){1,3}"), "(ab)((ab)((ab))?)?");
  EXPECT_EQ(unfold_counts("(a|b){0,1}"), "((a|b))?");
  EXPECT_EQ(unfold_counts("(?:ab){2,}"), "(?:ab)(?:ab)+");
  EXPECT_EQ(unfold_counts("(a){0,}"), "(a)*");
  EXPECT_EQ(unfold_counts("((a){2}b){2}"), "((a)(a)b)((a)(a)b)");
}

TEST(RegexCounts, WhatIsNoCountedGroupStays) {
  for (const char* same :
       {"",        "a{2,3}",    "[(]{2}",        "\\(a\\){2}", "[\\])]{3}(a)",
        "(a)b{2}", "(a)+",      "(a){,2}",       "(a){x}",     "(a){3,2}",
        "(a){0}",  "(a){1,2}?", "(?=a){2}",      "(a",         "a)",
        "[a",      "(a){2",     "[](]{2}(a){2}", "(a){1,65}",  "(a){99999999999}",
        "\\"})
    EXPECT_EQ(unfold_counts(same), same);
  const std::string long_group = "(" + std::string(500, 'a') + "){20}";
  EXPECT_EQ(unfold_counts(long_group), long_group);
  std::string nested = "(a)";
  for (int i = 0; i < 6; ++i) nested = "(" + nested + "){2,20}";
  EXPECT_LE(unfold_counts(nested).size(), 8u << 10);
}

std::string random_regex(Random& random, int depth) {
  std::string out;
  for (std::uint64_t parts = 1 + random.below(3); parts > 0; --parts) {
    const char* const atoms[] = {"a", "b", "[ab]", "[^a]", "\\(", "."};
    if (depth > 0 && random.chance(0.5))
      out += "(" + random_regex(random, depth - 1) + (random.chance(0.3) ? "|b" : "") + ")";
    else
      out += atoms[random.below(6)];
    const std::uint64_t least = random.below(3), most = least + random.below(3);
    const std::string counts[] = {"",
                                  "",
                                  "{" + std::to_string(least) + "}",
                                  "{" + std::to_string(least) + "," + std::to_string(most) + "}",
                                  "{" + std::to_string(least) + ",}",
                                  "?"};
    out += counts[random.below(6)];
  }
  return out;
}

TEST(RegexCounts, TheLanguageIsTheSame) {
  Random random(1);
  int changed = 0, matched = 0;
  for (int round = 0; round < 300; ++round) {
    const std::string regex = random_regex(random, 2), flat = unfold_counts(regex);
    changed += flat != regex;
    const std::regex before(regex), after(flat);
    for (int i = 0; i < 60; ++i) {
      std::string text(random.below(8), 'a');
      for (char& c : text) c = "ab("[random.below(3)];
      const bool expected = std::regex_match(text, before);
      matched += expected;
      ASSERT_EQ(std::regex_match(text, after), expected) << regex << " as " << flat << ": " << text;
    }
  }
  EXPECT_GT(changed, 50);
  EXPECT_GT(matched, 300);
}

}  // namespace
}  // namespace quire
