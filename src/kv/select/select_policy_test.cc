#include "kv/select/policy.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(SelectPolicy, ReadsWhatItWrites) {
  for (const char* text : {"quest:512", "quest:20%", "xattention:0.9", "vertical-slash:256+512"}) {
    const auto p = parse_select_policy(text);
    ASSERT_TRUE(p.ok()) << p.error().message;
    EXPECT_EQ(p.value().text(), text);
  }
  EXPECT_EQ(parse_select_policy("quest:0.25").value().text(), "quest:25%");
  EXPECT_EQ(parse_select_policy("xattention").value().text(), "xattention:0.9");
  EXPECT_EQ(parse_select_policy("quest:512").value().pages(4000, 32), 16u);
  EXPECT_EQ(parse_select_policy("quest:10%").value().pages(4000, 32), 13u);
  EXPECT_EQ(parse_select_policy("quest:5").value().pages(4000, 32), 1u);
}

TEST(SelectPolicy, RefusesWhatMakesNoSense) {
  for (const char* text : {"", "quest", "quest:0", "quest:x", "quest:1+2", "quest:-4", "quest:101%",
                           "xattention:1.5", "xattention:0", "xattention:3+4", "vertical-slash:0+1",
                           "vertical-slash:9", "vertical-slash:1+", "nobody:5"})
    EXPECT_FALSE(parse_select_policy(text).ok()) << text;
}

TEST(SelectPolicy, EveryMethodIsInTheTable) {
  for (const SelectMethod& m : select_methods()) {
    SelectAsk ask{.policy = std::string(m.name)};
    if (m.name == "quest") ask.tokens = 64;
    const auto p = make_select_policy(ask);
    ASSERT_TRUE(p.ok()) << p.error().message;
    EXPECT_EQ(p.value().answers(), m.when == "decode");
  }
}

}  // namespace
}  // namespace quire
