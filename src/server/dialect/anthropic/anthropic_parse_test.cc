#include "server/dialect/anthropic/anthropic_parse.h"

#include <gtest/gtest.h>

#include "server/dialect/openai/openai_parse.h"

namespace quire::anthropic {
namespace {

const ParseContext kContext{.vocabulary = 1000, .cache_min_tokens = 32, .kv = {.kv_format = "f16"}};
constexpr Nanoseconds kMinutes = 60'000'000'000;
const Json kEphemeral{{"type", "ephemeral"}};
const Json kHourly{{"type", "ephemeral"}, {"ttl", "1h"}};

Json request(Json more = Json::object()) {
  Json body{
      {"model", "m"}, {"max_tokens", 8}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}
Json text(const char* what, Json more = Json::object()) {
  Json block{{"type", "text"}, {"text", what}};
  block.update(more);
  return block;
}
Json turn(const char* role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}

GenerationRequest good(const Json& body) {
  GenerationRequest asked;
  const auto error = parse_messages(body, kContext, asked);
  EXPECT_FALSE(error) << body << ": " << error->message;
  return asked;
}

std::string bad(const Json& body) {
  GenerationRequest asked;
  const auto error = parse_messages(body, kContext, asked);
  if (!error) return "accepted";
  EXPECT_EQ(error->status, 400);
  return error->message;
}

const Json kTool{
    {"name", "weather"},
    {"description", "of a city"},
    {"input_schema", {{"type", "object"}, {"properties", {{"city", {{"type", "string"}}}}}}}};

TEST(AnthropicParse, PlainMessage) {
  const GenerationRequest a = good(request({{"system", "Be terse."}, {"stop_sequences", {"END"}}}));
  EXPECT_EQ(a.model, "m");
  EXPECT_EQ(a.tokens_max, 8u);
  EXPECT_EQ(a.messages, (Json{{{"role", "system"}, {"content", "Be terse."}},
                              {{"role", "user"}, {"content", "hi"}}}));
  EXPECT_EQ(a.stop, std::vector<std::string>{"END"});
  EXPECT_FALSE(a.stream);
  EXPECT_TRUE(a.breakpoints.empty());
  EXPECT_EQ(a.kv.breakpoint_tokens_min, 32u);
  ASSERT_EQ(a.parts.size(), 2u);
  EXPECT_EQ(a.parts[0].name, "system[0]");
  EXPECT_EQ(a.parts[1].name, "messages[0]");
}

TEST(AnthropicParse, WhatIsMissingIsNamed) {
  for (const char* name : {"model", "max_tokens", "messages"}) {
    Json body = request();
    body.erase(name);
    GenerationRequest asked;
    const auto error = parse_messages(body, kContext, asked);
    ASSERT_TRUE(error) << name;
    EXPECT_EQ(error->param, name);
    EXPECT_EQ(error->code, "missing_required_parameter");
  }
  EXPECT_EQ(good(request({{"max_tokens", 0}})).tokens_max, 0u);
  EXPECT_NE(bad(request({{"max_tokens", -1}})), "accepted");
}

// One conversation with everything in it, as both dialects say it.
TEST(AnthropicParse, EqualConversationsAreEqualInBothDialects) {
  const Json call{
      {"type", "tool_use"}, {"id", "toolu_1"}, {"name", "weather"}, {"input", {{"city", "Oslo"}}}};
  const GenerationRequest a = good(request(
      {{"system", {text("One."), text("Two.")}},
       {"tools", {kTool}},
       {"messages",
        {turn("user", "Question"),
         turn("assistant", {{{"type", "thinking"}, {"thinking", "hm"}, {"signature", "s"}},
                            text("Let me see."),
                            call}),
         turn("user", {{{"type", "tool_result"}, {"tool_use_id", "toolu_1"}, {"content", "18 C"}},
                       text("And?"),
                       text("Say it.")})}}}));
  GenerationRequest o;
  const auto error = openai::parse_chat(
      {{"model", "m"},
       {"tools",
        {{{"type", "function"},
          {"function",
           {{"name", "weather"},
            {"description", "of a city"},
            {"parameters", kTool["input_schema"]}}}}}},
       {"messages",
        {turn("system", {text("One."), text("Two.")}),
         turn("user", "Question"),
         {{"role", "assistant"},
          {"content", "Let me see."},
          {"tool_calls",
           {{{"id", "call_1"},
             {"type", "function"},
             {"function", {{"name", "weather"}, {"arguments", R"({"city":"Oslo"})"}}}}}}},
         {{"role", "tool"}, {"tool_call_id", "call_1"}, {"content", "18 C"}},
         turn("user", {text("And?"), text("Say it.")})}}},
      kContext, o);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(a.messages.dump(), o.messages.dump());  // the order of keys, too
  EXPECT_EQ(a.tools.dump(), o.tools.dump());
  EXPECT_EQ(a.add_generation_prompt, o.add_generation_prompt);
}

TEST(AnthropicParse, TurnsOfOneRoleBecomeOne) {
  const GenerationRequest a = good(request(
      {{"messages",
        {turn("user", "a"), turn("user", {text("b")}), turn("system", "c"), turn("user", "d")}}}));
  EXPECT_EQ(a.messages, (Json{turn("user", "a\nb"), turn("system", "c"), turn("user", "d")}));
}

TEST(AnthropicParse, TheAssistantsLastMessageIsContinued) {
  const GenerationRequest a =
      good(request({{"messages", {turn("user", "a"), turn("assistant", "The answer is (")}}}));
  EXPECT_TRUE(a.continue_final_message);
  EXPECT_FALSE(a.add_generation_prompt);
  const Json call{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}};
  EXPECT_NE(bad(request({{"messages", {turn("user", "a"), turn("assistant", {call})}}})),
            "accepted");
}

TEST(AnthropicParse, BreakpointsAreWhereTheirBlocksEnd) {
  Json tool = kTool;
  tool["cache_control"] = kHourly;
  const Json call{{"type", "tool_use"}, {"id", "t"}, {"name", "f"}, {"input", Json::object()}};
  const GenerationRequest a = good(
      request({{"tools", {tool}},
               {"system", {text("One.", {{"cache_control", kHourly}}), text("Two.")}},
               {"messages",
                {turn("user", {text("ab", {{"cache_control", kEphemeral}}), text("c")}),
                 turn("assistant", {call}),
                 turn("user", {{{"type", "tool_result"},
                                {"tool_use_id", "t"},
                                {"content", {text("x", {{"cache_control", kEphemeral}})}}}})}}}));
  EXPECT_EQ(a.breakpoints, (std::vector<CacheBreakpoint>{
                               {ConversationPart::kTools, ConversationPart::kWhole, 60 * kMinutes},
                               {0, 4, 60 * kMinutes},
                               {1, 2, 5 * kMinutes},
                               {3, ConversationPart::kWhole, 5 * kMinutes}}));
  std::vector<std::string> names;
  for (const ConversationPart& p : a.parts) names.push_back(p.name);
  EXPECT_EQ(names, (std::vector<std::string>{"tools", "system[0]", "system[1]",
                                             "messages[0].content[0]", "messages[0].content[1]",
                                             "messages[1].content[0]", "messages[2].content[0]"}));
}

TEST(AnthropicParse, AnAutomaticBreakpointIsOnTheLastBlock) {
  const GenerationRequest a = good(request(
      {{"cache_control", kEphemeral},
       {"messages",
        {turn("user", "first"), turn("assistant", "second"), turn("user", {text("third")})}}}));
  EXPECT_EQ(a.breakpoints, (std::vector<CacheBreakpoint>{{2, 5, 5 * kMinutes}}));
  // A block that is marked already is not marked twice.
  const GenerationRequest b =
      good(request({{"cache_control", kEphemeral},
                    {"messages", {turn("user", {text("third", {{"cache_control", kHourly}})})}}}));
  EXPECT_EQ(b.breakpoints, (std::vector<CacheBreakpoint>{{0, 5, 60 * kMinutes}}));
}

TEST(AnthropicParse, BreakpointsHaveRules) {
  const auto marked = [](std::initializer_list<Json> controls, Json more = Json::object()) {
    Json blocks = Json::array();
    for (const Json& c : controls) blocks.push_back(text("x", {{"cache_control", c}}));
    more["messages"] = {turn("user", blocks)};
    return request(more);
  };
  good(marked({kHourly, kHourly, kEphemeral, kEphemeral}));
  EXPECT_EQ(bad(marked({kEphemeral, kEphemeral, kEphemeral, kEphemeral, kEphemeral})),
            "A maximum of 4 blocks with cache_control may be provided. Found 5.");
  Json four_and_one = marked({kHourly, kHourly, kHourly, kHourly});
  four_and_one["messages"].push_back(turn("assistant", "a"));
  four_and_one["messages"].push_back(turn("user", "b"));
  four_and_one["cache_control"] = kEphemeral;
  EXPECT_EQ(bad(four_and_one),
            "A maximum of 4 blocks with cache_control may be provided. Found 5.");
  EXPECT_NE(bad(marked({kEphemeral, kHourly})), "accepted");
  EXPECT_NE(bad(marked({{{"type", "ephemeral"}, {"ttl", "2h"}}})), "accepted");
  EXPECT_NE(bad(marked({{{"type", "lasting"}}})), "accepted");
  EXPECT_NE(bad(marked({"yes"})), "accepted");
  EXPECT_NE(bad(request({{"system", {text("", {{"cache_control", kEphemeral}})}}})), "accepted");
  const Json thought{{"type", "thinking"}, {"thinking", "hm"}, {"cache_control", kEphemeral}};
  EXPECT_NE(bad(request({{"messages",
                          {turn("user", "a"), turn("assistant", {thought}), turn("user", "b")}}})),
            "accepted");
}

TEST(AnthropicParse, BlocksThatCannotBeReadAreRefused) {
  const auto blocks = [](Json list) { return request({{"messages", {turn("user", list)}}}); };
  EXPECT_NE(bad(blocks({{{"type", "image"}, {"source", {{"type", "base64"}}}}})), "accepted");
  EXPECT_NE(bad(blocks({text("")})), "accepted");
  EXPECT_NE(bad(blocks({Json::object()})), "accepted");
  EXPECT_NE(bad(blocks({3})), "accepted");
  EXPECT_NE(bad(blocks(Json::array())), "accepted");
  EXPECT_NE(bad(blocks({{{"type", "tool_result"}, {"tool_use_id", "unknown"}}})), "accepted");
  EXPECT_NE(bad(blocks({{{"type", "document"}, {"source", {{"type", "url"}}}}})), "accepted");
  EXPECT_NE(bad(request({{"messages", {turn("robot", "x")}}})), "accepted");
  EXPECT_NE(bad(request({{"tools", {{{"type", "web_search_20250305"}, {"name", "web_search"}}}}})),
            "accepted");
  const GenerationRequest a = good(blocks(
      {{{"type", "document"},
        {"title", "Rules"},
        {"source", {{"type", "text"}, {"media_type", "text/plain"}, {"data", "Be kind."}}}}}));
  EXPECT_EQ(a.messages[0]["content"], "Rules\nBe kind.");
}

TEST(AnthropicParse, ToolChoice) {
  const auto with = [](Json choice) {
    return request({{"tools", {kTool}}, {"tool_choice", std::move(choice)}});
  };
  EXPECT_EQ(good(with({{"type", "auto"}})).tool_choice.kind, ToolChoice::Kind::automatic);
  EXPECT_EQ(good(with({{"type", "none"}})).tool_choice.kind, ToolChoice::Kind::none);
  const GenerationRequest any = good(with({{"type", "any"}, {"disable_parallel_tool_use", true}}));
  EXPECT_EQ(any.tool_choice.kind, ToolChoice::Kind::required);
  EXPECT_FALSE(any.parallel_tool_calls);
  const GenerationRequest named = good(with({{"type", "tool"}, {"name", "weather"}}));
  EXPECT_EQ(named.tool_choice.allowed, std::vector<std::string>{"weather"});
  EXPECT_NE(bad(with({{"type", "tool"}, {"name", "other"}})), "accepted");
  EXPECT_NE(bad(with({{"type", "perhaps"}})), "accepted");
  EXPECT_NE(bad(request({{"tool_choice", {{"type", "any"}}}})), "accepted");
}

TEST(AnthropicParse, ShapeThinkingAndIgnoredFields) {
  const GenerationRequest a =
      good(request({{"output_config",
                     {{"effort", "low"},
                      {"format", {{"type", "json_schema"}, {"schema", {{"type", "object"}}}}}}},
                    {"thinking", {{"type", "enabled"}, {"budget_tokens", 1024}}},
                    {"metadata", {{"user_id", "u"}}},
                    {"service_tier", "auto"},
                    {"temperature", 0},
                    {"top_k", 3},
                    {"seed", 7}}));
  EXPECT_EQ(a.grammar.kind, AnswerGrammar::Kind::json_schema);
  EXPECT_EQ(a.template_variables, (Json{{"enable_thinking", true}}));
  EXPECT_EQ(a.sampling.temperature, 0);
  EXPECT_EQ(a.sampling.top_k, 3u);
  EXPECT_TRUE(a.seeded);
  EXPECT_NE(bad(request({{"kv", {{"tpyo", 1}}}})), "accepted");
}

TEST(AnthropicParse, DiagnosticsNameAnEarlierMessage) {
  EXPECT_EQ(good(request()).compare_to, "");
  EXPECT_EQ(good(request({{"diagnostics", {{"previous_message_id", nullptr}}}})).compare_to, "");
  EXPECT_EQ(good(request({{"diagnostics", {{"previous_message_id", "msg_1"}}}})).compare_to,
            "msg_1");
  EXPECT_NE(bad(request({{"diagnostics", {{"previous_message_id", 1}}}})), "accepted");
  EXPECT_NE(bad(request({{"diagnostics", {{"previous_message_id", std::string(300, 'x')}}}})),
            "accepted");
  EXPECT_NE(bad(request({{"diagnostics", "msg_1"}})), "accepted");
}

TEST(AnthropicParse, ACountNeedsNoMaxTokens) {
  Json body = request();
  body.erase("max_tokens");
  GenerationRequest a;
  EXPECT_FALSE(parse_conversation(body, kContext, a));
  EXPECT_EQ(a.messages, good(request()).messages);
}

TEST(AnthropicParse, AVersionRefusesWhatItRemoved) {
  const Json warm = request({{"temperature", 0.5}});
  EXPECT_FALSE(refused_by_version(warm, ""));
  EXPECT_FALSE(refused_by_version(warm, "2023-06-01"));
  EXPECT_TRUE(refused_by_version(warm, "2026-10-21"));
  EXPECT_FALSE(refused_by_version(request(), "2026-10-21"));
  const Json document{{"type", "document"}, {"source", {{"type", "text"}, {"data", "x"}}}};
  EXPECT_TRUE(refused_by_version(
      request({{"messages", {turn("user", "a"), turn("assistant", {document})}}}), "2026-10-21"));
  EXPECT_FALSE(
      refused_by_version(request({{"messages", {turn("user", {document})}}}), "2026-10-21"));
  EXPECT_TRUE(refused_by_version(
      request({{"messages", {turn("user", {text("a", {{"citations", {1}}})})}}}), "2026-10-21"));
}

}  // namespace
}  // namespace quire::anthropic
