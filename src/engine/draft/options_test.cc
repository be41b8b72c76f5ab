#include "engine/draft/options.h"

#include <gtest/gtest.h>

#include "engine/draft/source.h"

namespace quire {
namespace {

TEST(DraftOptions, AreReadAsVllmWritesThem) {
  const auto o = parse_draft_options(
      R"({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2})");
  ASSERT_TRUE(o.ok()) << o.error().message;
  EXPECT_EQ(o.value().sources, 1u);
  EXPECT_EQ(o.value().tokens_max, 5u);
  EXPECT_EQ(o.value().lookup_min, 2u);
  EXPECT_EQ(o.value().lookup_max, 4u);
  EXPECT_FALSE(parse_draft_options(R"({"method": "none"})").value().on());
  EXPECT_EQ(parse_draft_options("{}").value().sources, (1u << draft_sources().size()) - 1);
  EXPECT_EQ(parse_draft_options(R"({"method": "suffix"})").value().sources, 3u);
  EXPECT_EQ(parse_draft_options(R"({"prompt_lookup_max": 2})").value().lookup_min, 2u);
}

TEST(DraftOptions, WhatMakesNoSenseIsRefusedByName) {
  const auto refused = [](std::string_view json, std::string_view word) {
    const auto o = parse_draft_options(json);
    return !o.ok() && o.error().message.find(word) != std::string::npos;
  };
  EXPECT_TRUE(refused("7", "object"));
  EXPECT_TRUE(refused("{", ""));
  EXPECT_TRUE(refused(R"({"method": "eagle"})", "eagle"));
  EXPECT_TRUE(refused(R"({"method": 3})", "method"));
  EXPECT_TRUE(refused(R"({"num_speculative_tokens": 0})", "num_speculative_tokens"));
  EXPECT_TRUE(refused(R"({"num_speculative_tokens": -4})", "num_speculative_tokens"));
  EXPECT_TRUE(refused(R"({"num_speculative_tokens": 1e30})", "num_speculative_tokens"));
  EXPECT_TRUE(refused(R"({"prompt_lookup_min": 9, "prompt_lookup_max": 4})", "prompt_lookup_min"));
  EXPECT_TRUE(refused(R"({"depth": 9})", "depth"));
}

}  // namespace
}  // namespace quire
