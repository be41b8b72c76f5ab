#include "server/dialect/ollama/ollama_writer.h"

#include <gtest/gtest.h>

#include <sstream>

#include "text/tiny_vocab.h"

namespace quire::ollama {
namespace {

class OllamaWriting : public ::testing::Test {
 protected:
  Tokenizer tokenizer_ = std::move(Tokenizer::create(tiny_byte_level()).value());
  AnswerHead head_{.id = "1", .created = 5, .model = "m", .system_fingerprint = "fp_1"};
  std::vector<PromptInfo> prompts_{{.tokens = {104, 105}, .logprobs = {}}};
  const Usage usage_{.prompt = 9, .completion = 3, .prefill_seconds = 0.5, .decode_seconds = 0.25};

  static std::vector<Json> lines(const std::string& text) {
    std::vector<Json> out;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) out.push_back(Json::parse(line));
    return out;
  }
};

TEST_F(OllamaWriting, ChatIsALinePerPieceAndOneThatSaysDone) {
  OllamaWriter w({.chat = true, .stream = true}, head_, tokenizer_);
  std::string text = w.piece({.reasoning = "hm"}, prompts_, {});
  text += w.piece({.text = "a\nb"}, prompts_, {});
  text += w.piece({.finish = FinishReason::length}, prompts_, {});
  text += w.end(usage_, nullptr);
  const auto all = lines(text);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["message"], (Json{{"role", "assistant"}, {"content", ""}, {"thinking", "hm"}}));
  EXPECT_EQ(all[1]["message"]["content"], "a\nb");
  EXPECT_EQ(all[1]["done"], false);
  EXPECT_EQ(all[2]["done"], true);
  EXPECT_EQ(all[2]["done_reason"], "length");
  EXPECT_EQ(all[2]["prompt_eval_count"], 9);
  EXPECT_EQ(all[2]["prompt_eval_duration"], 500'000'000);
  EXPECT_EQ(all[2]["eval_count"], 3);
  EXPECT_EQ(all[2]["eval_duration"], 250'000'000);
  EXPECT_TRUE(all[2]["total_duration"].is_number_integer());
  EXPECT_FALSE(all[1].contains("total_duration"));
  EXPECT_FALSE(all[2].contains("context"));
}

TEST_F(OllamaWriting, CallsAreSentWhole) {
  OllamaWriter w({.chat = true, .stream = true}, head_, tokenizer_);
  using Kind = ToolPiece::Kind;
  EXPECT_EQ(
      w.piece({.tools = {{Kind::call, 0, "f"}, {Kind::arguments, 0, "{\"a\":"}}}, prompts_, {}),
      "");
  const auto all = lines(w.piece(
      {.tools = {{Kind::arguments, 0, "1}"}}, .finish = FinishReason::tool_calls}, prompts_, {}));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["message"]["tool_calls"],
            Json::parse(R"([{"function":{"name":"f","arguments":{"a":1}}}])"));
}

TEST_F(OllamaWriting, GenerateHasAResponseAndTheTokensSoFar) {
  const GenerationRequest asked{
      .chat = true, .return_token_ids = true, .stream = true, .extras = {{"generate", true}}};
  OllamaWriter stream(asked, head_, tokenizer_);
  std::string text = stream.piece({.text = "h", .tokens = {{.token = 7}}}, prompts_, {});
  text += stream.piece({.tokens = {{.token = 8}}, .finish = FinishReason::stop}, prompts_, {});
  text += stream.end(usage_, nullptr);
  const auto all = lines(text);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["response"], "h");
  EXPECT_EQ(all[1]["response"], "");
  EXPECT_EQ(all[1]["context"], (Json{104, 105, 7, 8}));
  OllamaWriter whole(asked, head_, tokenizer_);
  const Json body = whole.whole({{.text = "h", .token_ids = {7, 8}}}, prompts_, usage_, nullptr);
  EXPECT_EQ(body["response"], "h");
  EXPECT_EQ(body["done"], true);
  EXPECT_EQ(body["context"], (Json{104, 105, 7, 8}));
}

TEST_F(OllamaWriting, ErrorsAreOneText) {
  OllamaWriter w({.chat = true, .stream = true}, head_, tokenizer_);
  EXPECT_EQ(w.failure({.message = "no \"room\""}), "{\"error\":\"no \\\"room\\\"\"}\n");
}

}  // namespace
}  // namespace quire::ollama
