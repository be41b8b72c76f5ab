#include "server/dialect/openai/openai_writer.h"

#include <gtest/gtest.h>

#include "text/tiny_vocab.h"

namespace quire::openai {
namespace {

// The JSON of every event; [DONE] as a string.
std::vector<Json> events(std::string_view text) {
  std::vector<Json> out;
  while (!text.empty()) {
    const std::size_t end = text.find("\n\n");
    EXPECT_NE(end, text.npos);
    std::string_view event = text.substr(0, end);
    text.remove_prefix(end + 2);
    EXPECT_TRUE(event.starts_with("data: "));
    event.remove_prefix(6);
    EXPECT_EQ(event.find('\n'), event.npos);
    out.push_back(event == "[DONE]" ? Json("[DONE]") : Json::parse(event));
  }
  return out;
}

class Dialects : public ::testing::Test {
 protected:
  Tokenizer tokenizer_ = std::move(Tokenizer::create(tiny_byte_level()).value());
  AnswerHead head_{.id = "1", .created = 5, .model = "m", .system_fingerprint = "fp_1"};
  std::vector<PromptInfo> prompts_{{.tokens = {104, 105}, .logprobs = {}}};

  Choice token(TokenId id, float logprob = -1) { return {.token = id, .logprob = logprob}; }
};

TEST_F(Dialects, StreamedChatHasRoleOnceFinishOnceAndNoUsageUnasked) {
  OpenAiWriter d({.chat = true, .stream = true}, head_, tokenizer_);
  std::string text = d.piece({.text = "He"}, prompts_, {});
  text += d.piece({.text = "y \"\n"}, prompts_, {});
  text += d.piece({.finish = FinishReason::stop}, prompts_, {});
  text += d.end({}, nullptr);
  const auto all = events(text);
  ASSERT_EQ(all.size(), 5u);
  EXPECT_EQ(all[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(all[0]["object"], "chat.completion.chunk");
  EXPECT_EQ(all[0]["id"], "chatcmpl-1");
  EXPECT_EQ(all[1]["choices"][0]["delta"], (Json{{"content", "He"}}));
  EXPECT_EQ(all[2]["choices"][0]["delta"], (Json{{"content", "y \"\n"}}));
  EXPECT_EQ(all[3]["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(all[4], "[DONE]");
  for (int i = 0; i < 4; ++i) EXPECT_FALSE(all[i].contains("usage"));
  EXPECT_TRUE(all[1]["choices"][0]["finish_reason"].is_null());
}

TEST_F(Dialects, UsageComesLastOrContinuously) {
  OpenAiWriter d({.chat = true, .stream = true, .include_usage = true}, head_, tokenizer_);
  std::string text = d.piece({.text = "x"}, prompts_, {});
  text += d.end({.prompt = 9, .completion = 3, .cached = 4, .written = 2}, nullptr);
  auto all = events(text);
  EXPECT_TRUE(all[0]["usage"].is_null());
  const Json& last = all[all.size() - 2];
  EXPECT_EQ(last["choices"], Json::array());
  EXPECT_EQ(last["usage"]["total_tokens"], 12);
  EXPECT_EQ(last["usage"]["prompt_tokens_details"]["cached_tokens"], 4);

  OpenAiWriter c({.chat = true, .stream = true, .include_usage = true, .continuous_usage = true},
                 head_, tokenizer_);
  all = events(c.piece({.text = "x"}, prompts_, {.prompt = 9, .completion = 1}));
  EXPECT_EQ(all[1]["usage"]["completion_tokens"], 1);
}

TEST_F(Dialects, ToolCallsStreamInPieces) {
  OpenAiWriter d({.chat = true, .stream = true}, head_, tokenizer_);
  std::string text = d.piece(
      {.tools = {{ToolPiece::Kind::call, 0, "f"}, {ToolPiece::Kind::arguments, 0, "{\"a\""}}},
      prompts_, {});
  text += d.piece(
      {.tools = {{ToolPiece::Kind::arguments, 0, ":1}"}}, .finish = FinishReason::tool_calls},
      prompts_, {});
  const auto all = events(text);
  ASSERT_EQ(all.size(), 5u);
  const Json& first = all[1]["choices"][0]["delta"]["tool_calls"][0];
  EXPECT_EQ(first["function"]["name"], "f");
  EXPECT_EQ(first["type"], "function");
  EXPECT_TRUE(first["id"].get<std::string>().starts_with("call_"));
  const Json& second = all[2]["choices"][0]["delta"]["tool_calls"][0];
  EXPECT_FALSE(second.contains("id"));
  EXPECT_EQ(second["function"]["arguments"], "{\"a\"");
  EXPECT_EQ(all[4]["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(Dialects, FailureIsAnEventAndDone) {
  OpenAiWriter d({.chat = true, .stream = true}, head_, tokenizer_);
  const auto all = events(d.failure({.status = 500, .message = "no", .type = "server_error"}));
  EXPECT_EQ(all[0]["error"]["type"], "server_error");
  EXPECT_EQ(all[1], "[DONE]");
}

TEST_F(Dialects, LogprobBytesJoinToTheText) {
  OpenAiWriter d({.chat = true, .logprobs = true}, head_, tokenizer_);
  Choice e1 = token(0xC3), e2 = token(0xA9, -INFINITY);  // two halves of é
  e1.alternatives = {{0xC3, -1}, {65, -2}};
  const TokenId end = tokenizer_.eos();
  const Json body = d.whole({{.text = "é", .tokens = {e1, e2, token(end)}}}, prompts_,
                            {.prompt = 2, .completion = 3}, nullptr);
  const Json& content = body["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 3u);
  std::string bytes;
  for (const Json& c : content)
    for (const Json& b : c["bytes"]) bytes.push_back(static_cast<char>(b.get<int>()));
  EXPECT_EQ(bytes, "é");
  EXPECT_EQ(content[1]["logprob"], -9999.0);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_NO_THROW(Json::parse(dump(body)));  // half a character in "token" is replaced
}

TEST_F(Dialects, EchoedPromptIsScoredFromItsSecondToken) {
  prompts_[0].logprobs = {{.token = 104},
                          {.token = 105, .logprob = -2, .alternatives = {{106, -1}}}};
  OpenAiWriter d({.logprobs = true, .echo = true}, head_, tokenizer_);
  const Json body = d.whole({{.text = "!", .tokens = {token(33, -3)}}}, prompts_, {}, nullptr);
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["text"], "hi!");
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"h", "i", "!"}));
  EXPECT_TRUE(choice["logprobs"]["token_logprobs"][0].is_null());
  EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(choice["logprobs"]["token_logprobs"][1], -2.0);
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][1], (Json{{"j", -1.0}, {"i", -2.0}}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 1, 2}));
}

TEST_F(Dialects, CallsLeaveNoContent) {
  OpenAiWriter d({.chat = true}, head_, tokenizer_);
  const Json body = d.whole({{.calls = {{"f", "{}"}}, .finish = FinishReason::tool_calls}},
                            prompts_, {}, nullptr);
  EXPECT_TRUE(body["choices"][0]["message"]["content"].is_null());
  EXPECT_EQ(body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"], "{}");
  EXPECT_FALSE(body.contains("kv"));
}

}  // namespace
}  // namespace quire::openai
