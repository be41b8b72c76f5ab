#include "server/dialect/ollama/ollama_parse.h"

#include <gtest/gtest.h>

namespace quire::ollama {
namespace {

const ParseContext kContext{.vocabulary = 1000, .model = "m", .parse_special = false};
const Json kHello = Json::array({{{"role", "user"}, {"content", "hi"}}});

GenerationRequest parsed(ParseRequest* parse, const Json& body) {
  GenerationRequest asked;
  const auto error = parse(body, kContext, asked);
  EXPECT_FALSE(error) << error->message;
  return asked;
}

ApiError refused(ParseRequest* parse, const Json& body) {
  GenerationRequest asked;
  const auto error = parse(body, kContext, asked);
  EXPECT_TRUE(error) << body;
  return error.value_or(ApiError{});
}

TEST(OllamaParse, StreamsUnlessToldOtherwise) {
  EXPECT_TRUE(parsed(parse_chat, {{"model", "m"}, {"messages", kHello}}).stream);
  EXPECT_FALSE(
      parsed(parse_chat, {{"model", "m"}, {"messages", kHello}, {"stream", false}}).stream);
}

TEST(OllamaParse, OptionsBecomeSampling) {
  const auto asked =
      parsed(parse_chat, {{"model", "m"},
                          {"messages", kHello},
                          {"options", Json::parse(R"({"num_predict":5,"temperature":0.25,"top_k":-1,
      "top_p":0.5,"min_p":0.125,"seed":7,"stop":["a","b"],"repeat_penalty":1.5,"num_ctx":4096})")}});
  EXPECT_EQ(asked.tokens_max, 5u);
  EXPECT_EQ(asked.sampling.temperature, 0.25f);
  EXPECT_EQ(asked.sampling.top_k, 0u);
  EXPECT_EQ(asked.sampling.top_p, 0.5f);
  EXPECT_EQ(asked.sampling.min_p, 0.125f);
  EXPECT_EQ(asked.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(asked.sampling.seed, 7u);
  EXPECT_EQ(asked.stop.size(), 2u);
  const auto endless = parsed(
      parse_chat,
      {{"messages", kHello}, {"options", {{"num_predict", -1}, {"seed", -1}, {"stop", "x"}}}});
  EXPECT_FALSE(endless.tokens_max);
  EXPECT_FALSE(endless.seeded);
  EXPECT_EQ(endless.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(endless.model, "m");
}

TEST(OllamaParse, ToolsTheirCallsAndResults) {
  const auto asked = parsed(parse_chat, Json::parse(R"({"model":"m",
    "tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}],
    "messages":[{"role":"user","content":"go"},
      {"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"a":1}}}]},
      {"role":"tool","content":"2","tool_name":"f"}]})"));
  EXPECT_EQ(asked.tools.size(), 1u);
  EXPECT_EQ(asked.messages[1]["tool_calls"][0]["function"]["arguments"], (Json{{"a", 1}}));
  EXPECT_EQ(asked.messages[2], (Json{{"role", "tool"}, {"content", "2"}, {"name", "f"}}));
}

TEST(OllamaParse, FormatIsAShape) {
  EXPECT_EQ(parsed(parse_chat, {{"messages", kHello}, {"format", "json"}}).grammar.kind,
            AnswerGrammar::Kind::json_object);
  EXPECT_EQ(parsed(parse_chat, {{"messages", kHello}, {"format", ""}}).grammar.kind,
            AnswerGrammar::Kind::none);
  const auto asked = parsed(parse_chat, {{"messages", kHello}, {"format", {{"type", "integer"}}}});
  EXPECT_EQ(asked.grammar.kind, AnswerGrammar::Kind::json_schema);
  EXPECT_EQ(asked.grammar.schema, (Json{{"type", "integer"}}));
}

TEST(OllamaParse, APromptIsAConversationUnlessItIsRaw) {
  const auto chat =
      parsed(parse_generate, {{"prompt", "x"}, {"system", "s"}, {"context", {1u, 2u, 3u}}});
  EXPECT_TRUE(chat.chat);
  EXPECT_EQ(chat.messages.size(), 2u);
  EXPECT_EQ(chat.before, (std::vector<TokenId>{1, 2, 3}));
  const auto raw = parsed(parse_generate, {{"prompt", "x"}, {"raw", true}});
  EXPECT_FALSE(raw.chat);
  ASSERT_EQ(raw.prompts.size(), 1u);
  EXPECT_EQ(raw.prompts[0].text, "x");
  EXPECT_FALSE(raw.parse_special) << "--no-parse-special";
  EXPECT_EQ(parsed(parse_generate, {{"prompt", "x"}, {"suffix", "y"}}).suffix, "y");
}

TEST(OllamaParse, MistakesAreNamed) {
  EXPECT_EQ(refused(parse_chat, {{"messages", "x"}}).param, "messages");
  EXPECT_EQ(refused(parse_chat, {{"messages", Json::array({{{"role", "king"}}})}}).param,
            "messages[0].role");
  EXPECT_EQ(refused(parse_chat,
                    {{"messages", Json::array({{{"role", "user"}, {"images", {"a", "b", "c"}}}})}})
                .param,
            "messages[0].images");
  EXPECT_EQ(refused(parse_chat, {{"messages", kHello}, {"options", {{"temperature", 9}}}}).param,
            "options.temperature");
  EXPECT_EQ(refused(parse_chat, {{"messages", kHello}, {"format", "xml"}}).param, "format");
  EXPECT_EQ(refused(parse_generate, {{"prompt", "x"}, {"images", {"a", "b", "c"}}}).param,
            "images");
  EXPECT_EQ(refused(parse_generate, {{"prompt", "x"}, {"context", {1u, 1000u, 2u}}}).param,
            "context");
  EXPECT_EQ(refused(parse_generate, {{"prompt", "x"}, {"template", "{{ x }}"}}).status, 403);
}

TEST(OllamaParse, ABodyWithoutAPromptAsksToLoad) {
  EXPECT_TRUE(asks_to_load({{"model", "m"}}));
  EXPECT_TRUE(asks_to_load({{"model", "m"}, {"messages", Json::array()}}));
  EXPECT_TRUE(asks_to_load({{"model", "m"}, {"prompt", ""}, {"keep_alive", 0}}));
  EXPECT_FALSE(asks_to_load({{"prompt", "x"}}));
  EXPECT_FALSE(asks_to_load({{"prompt", ""}, {"suffix", "x"}}));
  EXPECT_FALSE(asks_to_load({{"messages", kHello}}));
  EXPECT_FALSE(asks_to_load(Json::array()));
}

}  // namespace
}  // namespace quire::ollama
