#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "server/grammar_masks.h"
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
                     *kBare = R"({% if tools %}{"name": ..., "parameters": ...}{% endif %})",
                     *kList = "{% if tools %}[TOOL_CALLS]{% endif %}";

AnswerGrammar grammar_for(const GenerationRequest& asked, std::string_view chat_template,
                          const Tokenizer& tokenizer = byte_tokenizer()) {
  return tool_call_grammar(asked, answer_format(chat_template), tokenizer);
}

TEST(ToolCallGrammar, DependsOnChoiceAndTemplate) {
  const GenerationRequest asked = with_tools({ToolChoice::Kind::required, {}});
  const AnswerGrammar tags = grammar_for(asked, kTags);
  EXPECT_EQ(tags.kind, AnswerGrammar::Kind::tool_calls);
  EXPECT_EQ(tags.param, "tools");
  EXPECT_FALSE(tags.hint);
  EXPECT_EQ(tags.schema.size(), 2u);
  EXPECT_TRUE(tags.form.parallel);
  EXPECT_EQ(grammar_for(asked, "").form.open, tags.form.open) << "ours has the same tags";
  const AnswerGrammar bare = grammar_for(asked, kBare);
  EXPECT_TRUE(bare.form.open.starts_with("{"));
  EXPECT_FALSE(bare.form.parallel);
  EXPECT_THAT(bare.form.middle, testing::HasSubstr("parameters"));
  EXPECT_EQ(grammar_for(asked, kList).form.begin, "[TOOL_CALLS][") << "the mark is text here";

  const AnswerGrammar named = grammar_for(with_tools({ToolChoice::Kind::required, {"g"}}), kTags);
  EXPECT_EQ(named.schema.size(), 1u);
  EXPECT_FALSE(named.form.parallel);
  EXPECT_TRUE(grammar_for(with_tools({ToolChoice::Kind::automatic, {}}), kTags).hint);
  EXPECT_EQ(grammar_for(with_tools({ToolChoice::Kind::automatic, {}}), kBare).kind,
            AnswerGrammar::Kind::none);
  EXPECT_EQ(grammar_for(with_tools({ToolChoice::Kind::none, {}}), kTags).kind,
            AnswerGrammar::Kind::none);
  EXPECT_EQ(grammar_for(GenerationRequest{}, kTags).kind, AnswerGrammar::Kind::none);
}

// Bytes, and control tokens for these marks.
Tokenizer with_control_tokens(std::vector<std::string> marks) {
  VocabSpec spec = tiny_byte_level();
  for (std::string& mark : marks) {
    spec.tokens.push_back(std::move(mark));
    spec.types.push_back(TokenType::control);
  }
  return std::move(Tokenizer::create(std::move(spec)).value());
}

TEST(ToolCallGrammar, ControlTokensComeBeforeItOrNotAtAll) {
  const GenerationRequest asked = with_tools({ToolChoice::Kind::required, {}});
  const Tokenizer mistral = with_control_tokens({"[TOOL_CALLS]"});
  const AnswerGrammar list = grammar_for(asked, kList, mistral);
  EXPECT_EQ(list.opening, std::vector<TokenId>{mistral.find("[TOOL_CALLS]")});
  EXPECT_EQ(list.form.begin, "[");
  EXPECT_FALSE(list.bare_calls);
  const Tokenizer hermes = with_control_tokens({"<tool_call>", "</tool_call>"});
  const AnswerGrammar bare = grammar_for(asked, kTags, hermes);
  EXPECT_TRUE(bare.bare_calls);
  EXPECT_TRUE(bare.form.open.starts_with("{"));
  EXPECT_EQ(grammar_for(with_tools({ToolChoice::Kind::automatic, {}}), kTags, hermes).kind,
            AnswerGrammar::Kind::none)
      << "a mask would keep the model from calling";
}

// Allows token 5, then token 6, then nothing.
class FiveSix final : public TokenMask {
 public:
  bool fill(std::span<std::uint32_t> bits) override {
    bits[0] = 1u << (5 + read_);
    return true;
  }
  bool accept(TokenId) override { return ++read_ < 2; }
  std::unique_ptr<TokenMask> fork() const override { return std::make_unique<FiveSix>(*this); }

 private:
  int read_ = 0;
};

std::uint32_t allowed_by(TokenMask& mask) {
  std::uint32_t bits[1] = {0};
  return mask.fill(bits) ? bits[0] : ~0u;
}

TEST(OpenedMask, LetsReasoningComeFirst) {
  const MaskOpening opening{.think = 1, .answer = 2, .tokens = {7}, .ends = {0}};
  auto straight = open_mask(opening, std::make_unique<FiveSix>());
  EXPECT_EQ(allowed_by(*straight), (1u << 7) | (1u << 1));
  auto thinks = straight->fork();
  EXPECT_TRUE(straight->accept(7));
  EXPECT_EQ(allowed_by(*straight), 1u << 5);
  EXPECT_TRUE(straight->accept(5));
  EXPECT_FALSE(straight->fork()->accept(6));

  EXPECT_TRUE(thinks->accept(1));
  EXPECT_EQ(allowed_by(*thinks), ~1u) << "anything but the end";
  EXPECT_TRUE(thinks->accept(9));
  EXPECT_TRUE(thinks->fork()->accept(2));
  EXPECT_TRUE(thinks->accept(2));
  EXPECT_EQ(allowed_by(*thinks), 1u << 7) << "it thinks once";

  auto inside = open_mask({.think = 1, .answer = 2, .inside = true, .ends = {0}},
                          std::make_unique<FiveSix>());
  EXPECT_EQ(allowed_by(*inside), ~1u);
  EXPECT_TRUE(inside->accept(2));
  EXPECT_EQ(allowed_by(*inside), 1u << 5);
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
  for (const char* chat : {kTags, kBare, kList}) {
    auto made = make(grammar_for(with_tools({ToolChoice::Kind::required, {"f"}}), chat));
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
    const auto reader = answer_format(chat).calls->reader(nullptr);
    std::vector<ToolPiece> pieces = reader->add(text);
    std::ranges::move(reader->finish(), std::back_inserter(pieces));
    ASSERT_EQ(reader->calls(), 1u) << text;
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
  const auto tools = make(grammar_for(asked, kTags));
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
