#include "kv/retain/policy.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

RetainPolicy policy(std::string_view text) {
  auto p = parse_retain_policy(text);
  EXPECT_TRUE(p.ok()) << (p.ok() ? "" : p.error().message);
  return p.value();
}

TEST(RetainPolicy, TextSaysWhatIsKept) {
  EXPECT_EQ(policy("snapkv:20%").budget(1000), 200u);
  EXPECT_EQ(policy("snapkv:0.2").budget(1000), 200u);
  EXPECT_EQ(policy("snapkv:300").budget(1000), 300u);
  EXPECT_EQ(policy("streaming:512,sink=8").method.sinks, 8u);
  EXPECT_EQ(policy("keydiff:1%,every=100").every, 100u);
  EXPECT_EQ(policy("h2o:10%,merge=value").merger->name, "value");
}

TEST(RetainPolicy, TextIsReadAsItIsWritten) {
  for (const char* text :
       {"snapkv:20%", "streaming:512,sink=8", "ada-expected:12.5%", "h2o:10%,every=64,merge=cam",
        "critical-snapkv:100,recent=16", "tova:7,every=0"})
    EXPECT_EQ(policy(text).text(), text);
}

TEST(RetainPolicy, OtherNamesAreUnderstood) {
  EXPECT_EQ(policy("adakv:20%").name, "ada-snapkv");
  EXPECT_EQ(policy("pyramid:20%").name, "pyramidkv");
  EXPECT_EQ(make_retain_policy({.policy = "expected", .ratio = 0.5, .per_head = true}).value().name,
            "ada-expected");
}

TEST(RetainPolicy, WhatMakesNoSenseIsRefused) {
  for (const char* text :
       {"", "snapkv", "snapkv:", "snapkv:x", "snapkv:0", "snapkv:101%", "snapkv:1.5", "nobody:20%",
        "snapkv:20%,sink", "snapkv:20%,sink=x", "snapkv:20%,merge=", "snapkv:20%,merge=nobody",
        "streaming:8,sink=4,recent=5", "kvzip:50%,every=64", "oracle:50%", "ada-pyramidkv:20%"})
    EXPECT_FALSE(parse_retain_policy(text).ok()) << text;
  EXPECT_FALSE(make_retain_policy({.policy = "snapkv", .tokens = 5, .ratio = 0.5}).ok());
}

// A hit must not hide the queries that a method looks at.
TEST(RetainPolicy, SaysWhichQueriesItMustSee) {
  EXPECT_EQ(policy("knorm:20%").prompt_queries(), 0u);
  EXPECT_EQ(policy("kvzip:20%").prompt_queries(), 0u);
  EXPECT_EQ(policy("snapkv:20%").prompt_queries(), 64u);
  EXPECT_EQ(policy("tova:20%").prompt_queries(), 1u);
  EXPECT_EQ(policy("h2o:20%").prompt_queries(), RetainPolicy::kAllQueries);
  EXPECT_EQ(policy("expected:20%").prompt_queries(), RetainPolicy::kAllQueries);
  EXPECT_EQ(policy("knorm:20%,merge=cam").prompt_queries(), RetainPolicy::kAllQueries);
}

TEST(RetainPolicy, OnlyFirstAndLastTokensAreEndless) {
  EXPECT_TRUE(policy("streaming:512").endless());
  EXPECT_TRUE(policy("window:512").endless());
  EXPECT_FALSE(policy("streaming:512,every=0").endless());
  EXPECT_FALSE(policy("tova:512").endless());
  EXPECT_FALSE(policy("knorm:512").endless());
}

TEST(RetainPolicy, OnlyWhatDependsOnThePrefixAloneIsShared) {
  EXPECT_TRUE(policy("kvzip:30%,cut=500").snapshots());
  EXPECT_EQ(policy("kvzip:30%,cut=500").text(), "kvzip:30%,cut=500");
  EXPECT_FALSE(policy("kvzip:30%").snapshots());
  EXPECT_FALSE(policy("snapkv:30%,cut=500").snapshots());
}

}  // namespace
}  // namespace quire
