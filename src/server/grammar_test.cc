#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "server/grammar_masks.h"
#include "server/tools.h"
#include "text/grammar_testing.h"

namespace quire {
namespace {

GenerationRequest with_tools(ToolChoice choice) {
  GenerationRequest asked;
  asked.chat = true;
  asked.tools = parse_json(R"([
      {"type":"function","function":{"name":"f","parameters":{"type":"object",
       "properties":{"a":{"type":"integer"}},"required":["a"]}}},
      {"type":"function","function":{"name":"g"}}])")
                    .value();
  asked.tool_choice = std::move(choice);
  return asked;
}

constexpr const char *kTags = "{% if tools %}<tool_call>{% endif %}",
                     *kBare = R"({% if tools %}{"name": ..., "parameters": ...}{% endif %})";

TEST(ToolCallGrammar, DependsOnChoiceAndTemplate) {
  const GenerationRequest asked = with_tools({ToolChoice::Kind::required, {}});
  const AnswerGrammar tags = tool_call_grammar(asked, kTags);
  EXPECT_EQ(tags.kind, AnswerGrammar::Kind::tool_calls);
  EXPECT_EQ(tags.param, "tools");
  EXPECT_FALSE(tags.hint);
  EXPECT_EQ(tags.schema["tools"].size(), 2u);
  EXPECT_TRUE(tags.schema["parallel"]);
  EXPECT_EQ(tool_call_grammar(asked, "").schema, tags.schema) << "ours has the same tags";
  const AnswerGrammar bare = tool_call_grammar(asked, kBare);
  EXPECT_FALSE(bare.schema["tags"]);
  EXPECT_FALSE(bare.schema["parallel"]);
  EXPECT_EQ(bare.schema["arguments"], "parameters");

  const AnswerGrammar named =
      tool_call_grammar(with_tools({ToolChoice::Kind::required, {"g"}}), kTags);
  EXPECT_EQ(named.schema["tools"].size(), 1u);
  EXPECT_FALSE(named.schema["parallel"]);
  const AnswerGrammar automatic =
      tool_call_grammar(with_tools({ToolChoice::Kind::automatic, {}}), kTags);
  EXPECT_TRUE(automatic.hint);
  EXPECT_EQ(tool_call_grammar(with_tools({ToolChoice::Kind::automatic, {}}), kBare).kind,
            AnswerGrammar::Kind::none);
  EXPECT_EQ(tool_call_grammar(with_tools({ToolChoice::Kind::none, {}}), kTags).kind,
            AnswerGrammar::Kind::none);
  EXPECT_EQ(tool_call_grammar(GenerationRequest{}, kTags).kind, AnswerGrammar::Kind::none);
}

class GrammarMasksTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!masks_) GTEST_SKIP() << "built without xgrammar";
  }
  GrammarMaker::Made make(const AnswerGrammar& asked) {
    std::promise<GrammarMaker::Made> promise;
    masks_->make(asked, std::make_shared<MaskState>(),
                 [&](GrammarMaker::Made made) { promise.set_value(std::move(made)); });
    return promise.get_future().get();
  }

  const Tokenizer tokenizer_ = byte_tokenizer();
  const std::uint32_t vocabulary_ = static_cast<std::uint32_t>(tokenizer_.size());
  std::unique_ptr<GrammarMasks> masks_ = GrammarMasks::create(tokenizer_, vocabulary_);
};

TEST_F(GrammarMasksTest, ForcedCallsAreReadAsCalls) {
  for (const char* chat : {kTags, kBare}) {
    auto made = make(tool_call_grammar(with_tools({ToolChoice::Kind::required, {"f"}}), chat));
    ASSERT_TRUE(made.ok()) << made.error().message;
    // Whatever closes comes first, until nothing but the end may.
    std::string text;
    std::vector<std::uint32_t> bits((vocabulary_ + 31) / 32);
    bool more = true;
    while (more && text.size() < 200) {
      made.value()->fill(bits);
      TokenId next = kNoToken;
      for (TokenId t = 0; t < 256 && next == kNoToken; ++t)
        if (bit(bits, (t + '}') % 256)) next = (t + '}') % 256;
      if (next == kNoToken) next = tokenizer_.eos();
      more = made.value()->accept(next);
      if (more) text += static_cast<char>(next);
    }
    EXPECT_FALSE(more) << "the end token ends it: " << text;
    ToolCallReader reader;
    std::vector<ToolPiece> pieces = reader.add(text);
    std::ranges::move(reader.finish(), std::back_inserter(pieces));
    ASSERT_EQ(reader.calls(), 1u) << text;
    EXPECT_EQ(pieces[0].text, "f");
    EXPECT_TRUE(parse_json(pieces[1].text).ok()) << text;
    for (const ToolPiece& p : pieces) EXPECT_NE(p.kind, ToolPiece::Kind::content) << p.text;
  }
}

TEST_F(GrammarMasksTest, WhatIsWrongComesBack) {
  const auto schema = make({.kind = AnswerGrammar::Kind::json_schema, .schema = {{"type", "x"}}});
  ASSERT_FALSE(schema.ok());
  EXPECT_EQ(schema.error().code, Code::invalid);
  GenerationRequest asked = with_tools({ToolChoice::Kind::required, {}});
  asked.tools[0]["function"]["parameters"]["properties"]["a"]["type"] = "x";
  const auto tools = make(tool_call_grammar(asked, kTags));
  ASSERT_FALSE(tools.ok());
  EXPECT_THAT(tools.error().message, testing::HasSubstr("function 'f'"));
  EXPECT_FALSE(make({.kind = AnswerGrammar::Kind::regex, .text = "["}).ok());
}

TEST_F(GrammarMasksTest, ManyMayAskAtOnceAndAShutdownAnswersAll) {
  std::atomic<int> answered = 0;
  for (int i = 0; i < 200; ++i)
    masks_->make({.kind = AnswerGrammar::Kind::regex, .text = "a{1," + std::to_string(i + 1) + "}"},
                 std::make_shared<MaskState>(), [&](GrammarMaker::Made made) {
                   EXPECT_TRUE(made.ok() || made.error().code == Code::unavailable);
                   ++answered;
                 });
  masks_.reset();
  EXPECT_EQ(answered, 200);
}

}  // namespace
}  // namespace quire
