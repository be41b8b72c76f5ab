#include "server/dialect/gemini/gemini_writer.h"

#include <gtest/gtest.h>

#include "text/tiny_vocab.h"

namespace quire::gemini {
namespace {

class GeminiWriting : public ::testing::Test {
 protected:
  Tokenizer tokenizer_ = std::move(Tokenizer::create(tiny_byte_level()).value());
  AnswerHead head_{.id = "1", .created = 5, .model = "m", .system_fingerprint = "fp_1"};
  std::vector<PromptInfo> prompts_{{.tokens = {104, 105}, .logprobs = {}}};
  const Usage usage_{.prompt = 9, .completion = 3, .cached = 4};

  static std::vector<Json> events(std::string_view text) {
    std::vector<Json> out;
    while (!text.empty()) {
      EXPECT_TRUE(text.starts_with("data: ")) << text;
      const std::size_t end = text.find("\n\n");
      out.push_back(Json::parse(text.substr(6, end - 6)));
      text.remove_prefix(end + 2);
    }
    return out;
  }
};

TEST_F(GeminiWriting, OneFinishWithTheWholeUsageAtTheEnd) {
  GeminiWriter w({.chat = true, .stream = true}, head_, tokenizer_);
  std::string text = w.piece({.text = "He"}, prompts_, {.prompt = 9, .completion = 1});
  text += w.piece({.text = "y", .finish = FinishReason::stop}, prompts_, {});
  text += w.end(usage_, {{"x", 1}});
  const auto all = events(text);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["candidates"][0]["content"],
            Json::parse(R"({"role":"model","parts":[{"text":"He"}]})"));
  EXPECT_FALSE(all[0]["candidates"][0].contains("finishReason"));
  EXPECT_EQ(all[0]["usageMetadata"]["totalTokenCount"], 10);
  EXPECT_EQ(all[1]["candidates"][0]["finishReason"], "STOP");
  EXPECT_EQ(all[1]["candidates"][0]["content"]["parts"][0]["text"], "y");
  EXPECT_EQ(all[1]["usageMetadata"]["promptTokenCount"], 9);
  EXPECT_EQ(all[1]["usageMetadata"]["cachedContentTokenCount"], 4);
  EXPECT_EQ(all[1]["usageMetadata"]["candidatesTokenCount"], 3);
  EXPECT_EQ(all[1]["kv"]["x"], 1);
  EXPECT_EQ(all[1]["responseId"], "r_1");
  EXPECT_EQ(all[1]["modelVersion"], "m");
  EXPECT_EQ(w.stream_head().idle_text, "");  // a comment would be taken for JSON
}

TEST_F(GeminiWriting, WithoutEventsTheStreamIsOneArray) {
  GeminiWriter w({.chat = true, .stream = true, .extras = {{"array", true}}}, head_, tokenizer_);
  std::string text = w.piece({.text = "a"}, prompts_, {});
  text += w.piece({.finish = FinishReason::length}, prompts_, {});
  text += w.end(usage_, nullptr);
  const Json all = Json::parse(text);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[1]["candidates"][0]["finishReason"], "MAX_TOKENS");
  EXPECT_EQ(all[1]["candidates"][0]["content"]["parts"][0]["text"], "");
  EXPECT_EQ(w.stream_head().headers.front().value, "application/json; charset=utf-8");

  GeminiWriter broken({.chat = true, .stream = true, .extras = {{"array", true}}}, head_,
                      tokenizer_);
  text = broken.piece({.text = "a"}, prompts_, {});
  text += broken.failure({.status = 503, .message = "gone"});
  EXPECT_EQ(Json::parse(text)[1]["error"]["status"], "UNAVAILABLE");
}

TEST_F(GeminiWriting, CallsAreSentWhole) {
  GeminiWriter w({.chat = true, .stream = true}, head_, tokenizer_);
  using Kind = ToolPiece::Kind;
  std::string text =
      w.piece({.tools = {{Kind::call, 0, "f"}, {Kind::arguments, 0, "{\"a\""}}}, prompts_, {});
  EXPECT_EQ(text, "");
  text += w.piece({.tools = {{Kind::arguments, 0, ":1}"}, {Kind::call, 1, "g"}}}, prompts_, {});
  text += w.piece({.tools = {{Kind::arguments, 1, "{}"}}, .finish = FinishReason::tool_calls},
                  prompts_, {});
  text += w.end(usage_, nullptr);
  const auto all = events(text);
  ASSERT_EQ(all.size(), 2u);
  const Json& first = all[0]["candidates"][0]["content"]["parts"][0]["functionCall"];
  EXPECT_EQ(first["name"], "f");
  EXPECT_EQ(first["args"], (Json{{"a", 1}}));
  EXPECT_TRUE(first["id"].is_string());
  EXPECT_EQ(all[1]["candidates"][0]["content"]["parts"][0]["functionCall"]["name"], "g");
  EXPECT_EQ(all[1]["candidates"][0]["finishReason"], "STOP");
}

TEST_F(GeminiWriting, ACallThatIsNoObjectIsToldAsSuch) {
  GeminiWriter w({.chat = true}, head_, tokenizer_);
  const Json body = w.whole({{.calls = {{"f", "[1]"}}, .finish = FinishReason::tool_calls}},
                            prompts_, usage_, nullptr);
  EXPECT_EQ(body["candidates"][0]["finishReason"], "MALFORMED_FUNCTION_CALL");
}

TEST_F(GeminiWriting, ThoughtsAreShownWhereTheyAreAskedFor) {
  const WholeAnswer answer{.reasoning = "hm", .text = "yes"};
  const Usage usage{.prompt = 2, .completion = 5, .reasoning = 3};
  GeminiWriter quiet({.chat = true}, head_, tokenizer_);
  EXPECT_EQ(quiet.whole({answer}, prompts_, usage, nullptr)["candidates"][0]["content"]["parts"],
            Json::parse(R"([{"text":"yes"}])"));
  GeminiWriter loud({.chat = true, .extras = {{"thoughts", true}}}, head_, tokenizer_);
  const Json body = loud.whole({answer}, prompts_, usage, nullptr);
  EXPECT_EQ(body["candidates"][0]["content"]["parts"],
            Json::parse(R"([{"text":"hm","thought":true},{"text":"yes"}])"));
  EXPECT_EQ(body["usageMetadata"]["thoughtsTokenCount"], 3);
  EXPECT_EQ(body["usageMetadata"]["candidatesTokenCount"], 2);
  EXPECT_EQ(body["usageMetadata"]["totalTokenCount"], 7);
}

TEST_F(GeminiWriting, LogprobsOfTokensAndTheirMean) {
  const std::vector<Choice> tokens = {{.token = 104, .logprob = -1, .alternatives = {{105, -0.5f}}},
                                      {.token = 105, .logprob = -3}};
  GeminiWriter w({.chat = true, .logprobs = true, .top_logprobs = 1}, head_, tokenizer_);
  const Json body =
      w.whole({{.text = "hi", .tokens = tokens, .mean_logprob = -2}}, prompts_, usage_, nullptr);
  const Json& c = body["candidates"][0];
  EXPECT_EQ(c["avgLogprobs"], -2);
  EXPECT_EQ(c["logprobsResult"]["chosenCandidates"][1]["logProbability"], -3);
  EXPECT_EQ(c["logprobsResult"]["topCandidates"][0]["candidates"][0]["tokenId"], 105);
  GeminiWriter stream({.chat = true, .logprobs = true, .stream = true}, head_, tokenizer_);
  std::string text =
      stream.piece({.text = "hi", .tokens = tokens, .finish = FinishReason::stop}, prompts_, {});
  text += stream.end(usage_, nullptr);
  EXPECT_EQ(events(text).back()["candidates"][0]["avgLogprobs"], -2);
}

TEST_F(GeminiWriting, SeveralCandidatesEachFinishOnce) {
  GeminiWriter w({.chat = true, .n = 2, .best_of = 2, .stream = true}, head_, tokenizer_);
  std::string text = w.piece({.index = 1, .text = "b", .finish = FinishReason::stop}, prompts_, {});
  text += w.piece({.index = 0, .text = "a", .finish = FinishReason::stop}, prompts_, {});
  text += w.end(usage_, nullptr);
  const auto all = events(text);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["candidates"][0]["index"], 1);
  EXPECT_EQ(all[1]["candidates"][0]["index"], 0);
  for (const Json& event : all) EXPECT_EQ(event["candidates"][0]["finishReason"], "STOP");
}

TEST(GeminiErrors, HaveTheVendorsNames) {
  EXPECT_EQ(gemini_error(bad_value("x", "y"))["error"]["status"], "INVALID_ARGUMENT");
  EXPECT_EQ(gemini_error(not_found("x"))["error"]["code"], 404);
  EXPECT_EQ(gemini_error({.status = 429})["error"]["status"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(gemini_error({.status = 408})["error"]["status"], "DEADLINE_EXCEEDED");
  EXPECT_EQ(gemini_status({.status = 408}), 504);
}

}  // namespace
}  // namespace quire::gemini
