#include "server/cache_diagnostics.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

Explanation diagnosed(std::string segment, bool reused_all) {
  Explanation e;
  e.compared_to = "req_before";
  e.prompt_tokens = 100;
  e.cached_tokens = 32;
  e.missed_tokens = 68;
  e.shared_prefix_tokens = 40;
  e.changed_segment = std::move(segment);
  e.reused_all = reused_all;
  return e;
}

TEST(CacheDiagnostics, AppendedTurnsAreNoChange) {
  const CacheDiagnosis d = diagnose_cache(diagnosed("", true));
  EXPECT_EQ(d.change, CacheChange::none);
  EXPECT_TRUE(anthropic_diagnostics(d).is_null());
  EXPECT_EQ(openai_diagnostics(d)["type"], "cache_hit");
}

TEST(CacheDiagnostics, NamesThePartThatChanged) {
  const auto anthropic = [](const std::string& segment) {
    return anthropic_diagnostics(diagnose_cache(diagnosed(segment, true)));
  };
  EXPECT_EQ(anthropic("tools")["cache_miss_reason"]["type"], "tools_changed");
  EXPECT_EQ(anthropic("system[0]")["cache_miss_reason"]["type"], "system_changed");
  EXPECT_EQ(anthropic("messages[3]")["cache_miss_reason"]["type"], "messages_changed");
  EXPECT_EQ(anthropic("tools")["cache_miss_reason"]["cache_missed_input_tokens"], 68);
  const Json openai = openai_diagnostics(diagnose_cache(diagnosed("system[0]", true)));
  EXPECT_EQ(openai["reason"], "input_changed");
  EXPECT_EQ(openai["cache_missed_tokens"], 68);
  EXPECT_EQ(openai["comparison_reusable_tokens"], 40);
}

// A template may show the tools behind the system prompt.
TEST(CacheDiagnostics, ToolsComeBeforeTheSystemPrompt) {
  const auto type = [](const Explanation& e) {
    return anthropic_diagnostics(diagnose_cache(e))["cache_miss_reason"]["type"];
  };
  Explanation e = diagnosed("messages[0]", true);
  e.other_system = true;
  EXPECT_EQ(type(e), "system_changed");
  e.other_tools = true;
  EXPECT_EQ(type(e), "tools_changed");
}

TEST(CacheDiagnostics, WhatAnotherRequestLeftIsReusedToo) {
  Explanation e = diagnosed("messages[0]", true);
  e.cached_tokens = 99;
  EXPECT_EQ(diagnose_cache(e).change, CacheChange::none);
}

TEST(CacheDiagnostics, AnotherPromptCacheKeyIsNoReason) {
  Explanation e = diagnosed("messages[0]", true);
  e.other_family = true;
  EXPECT_EQ(diagnose_cache(e).change, CacheChange::messages);
}

TEST(CacheDiagnostics, ModelAndSaltComeBeforeTheText) {
  Explanation e = diagnosed("tools", false);
  e.other_salt = true;
  EXPECT_EQ(openai_diagnostics(diagnose_cache(e))["reason"], "prompt_cache_key_changed");
  EXPECT_EQ(openai_diagnostics(diagnose_cache(e))["comparison_reusable_tokens"], 0);
  EXPECT_EQ(anthropic_diagnostics(diagnose_cache(e))["cache_miss_reason"]["type"], "unavailable");
  e.other_model = true;
  EXPECT_EQ(openai_diagnostics(diagnose_cache(e))["reason"], "model_changed");
  EXPECT_EQ(anthropic_diagnostics(diagnose_cache(e))["cache_miss_reason"]["type"], "model_changed");
}

TEST(CacheDiagnostics, EvictedBlocksAreNoChangeOfTheText) {
  const CacheDiagnosis d = diagnose_cache(diagnosed("", false));
  EXPECT_EQ(d.change, CacheChange::unavailable);
  EXPECT_FALSE(anthropic_diagnostics(d)["cache_miss_reason"].contains("cache_missed_input_tokens"));
  EXPECT_EQ(openai_diagnostics(d)["type"], "unavailable");
}

TEST(CacheDiagnostics, ACompactedConversation) {
  const CacheDiagnosis d{.change = CacheChange::compacted, .missed_tokens = 7};
  EXPECT_EQ(openai_diagnostics(d)["reason"], "context_compacted");
  EXPECT_EQ(anthropic_diagnostics(d)["cache_miss_reason"]["type"], "messages_changed");
}

TEST(CacheDiagnostics, ForgottenRequests) {
  Explanation e = diagnosed("", true);
  e.compare_missing = true;
  EXPECT_EQ(anthropic_diagnostics(diagnose_cache(e))["cache_miss_reason"]["type"],
            "previous_message_not_found");
  EXPECT_EQ(openai_diagnostics(diagnose_cache(e))["type"], "comparison_response_not_found");
}

}  // namespace
}  // namespace quire
