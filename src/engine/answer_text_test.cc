#include "engine/answer_text.h"

#include <gtest/gtest.h>

#include "engine/testing.h"

namespace quire {
namespace {

// The tiny vocabulary: a token per byte, 256 and up are special.
class AnswerTextTest : public ::testing::Test {
 protected:
  const Tokenizer& tokenizer() { return runtime_->tokenizer(); }

  AnswerText make(AnswerTextOptions options) {
    stops_ = std::move(StopStrings::create(options.stop).value());
    return AnswerText(tokenizer(), stops_, std::move(options));
  }
  static Choice token(TokenId id) { return {.token = id, .logprob = -1, .alternatives = {}}; }

  // Feeds all bytes; the text, and whether and after how many tokens it stopped.
  std::string feed(AnswerText& text, std::string_view bytes) {
    std::string out;
    for (const char c : bytes) text.add(token(static_cast<unsigned char>(c)), out);
    return out;
  }

  TinyRuntime runtime_{{.layers = 1}};
  StopStrings stops_;
};

TEST_F(AnswerTextTest, TextComesAsItBecomesCertain) {
  AnswerText text = make({.stop = {"END"}});
  std::string out;
  EXPECT_FALSE(text.add(token('a'), out));
  EXPECT_EQ(out, "a");
  EXPECT_FALSE(text.add(token('E'), out));
  EXPECT_EQ(out, "a");  // could be the stop string
  EXPECT_EQ(text.tokens(), 2u);
  EXPECT_EQ(text.tokens_shown(), 1u);
  EXPECT_FALSE(text.add(token('x'), out));
  EXPECT_EQ(out, "aEx");
  EXPECT_EQ(text.tokens_shown(), 3u);
}

TEST_F(AnswerTextTest, NothingAfterAStopStringCounts) {
  AnswerText text = make({.stop = {"END", "!!"}});
  EXPECT_EQ(feed(text, "abENDwhat the engine sampled meanwhile"), "ab");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(*text.stopped_by(), "END");
  EXPECT_EQ(text.tokens(), 5u);
  EXPECT_EQ(text.tokens_shown(), 2u);
  EXPECT_EQ(text.mean_logprob(), -1);
  std::string out;
  text.finish(out);
  EXPECT_EQ(out, "");
}

TEST_F(AnswerTextTest, TheStopStringMayStay) {
  AnswerText text = make({.include_stop = true, .stop = {"END"}});
  EXPECT_EQ(feed(text, "abEND"), "abEND");
  EXPECT_EQ(text.tokens_shown(), 5u);
}

TEST_F(AnswerTextTest, WhatIsHeldBackComesAtTheEnd) {
  AnswerText text = make({.stop = {"END"}});
  std::string out = feed(text, "abEN");
  EXPECT_EQ(out, "ab");
  text.finish(out);
  EXPECT_EQ(out, "abEN");
  EXPECT_EQ(text.tokens_shown(), 4u);
  EXPECT_FALSE(text.stopped());
}

TEST_F(AnswerTextTest, HalfACharacterWaitsForTheRest) {
  AnswerText text = make({});
  std::string out = feed(text, "\xe2\x9c");
  EXPECT_EQ(out, "");
  EXPECT_EQ(text.tokens(), 2u);
  out += feed(text, "\x93");
  EXPECT_EQ(out, "\xe2\x9c\x93");
  EXPECT_EQ(text.tokens_shown(), 3u);
  AnswerText cut = make({});
  out = feed(cut, "a\xe2\x9c");
  cut.finish(out);
  EXPECT_EQ(out, "a\xef\xbf\xbd");
  EXPECT_EQ(cut.tokens_shown(), 3u);
}

TEST_F(AnswerTextTest, EndTokensCountAndLeaveNoText) {
  for (const bool skip : {true, false}) {
    AnswerText text = make({.skip_special = skip, .end_tokens = {257}});
    std::string out = feed(text, "ab");
    EXPECT_FALSE(text.add(token(257), out));
    text.finish(out);
    EXPECT_EQ(out, "ab");
    EXPECT_EQ(text.tokens(), 3u);
    EXPECT_EQ(text.tokens_shown(), 3u);
  }
}

TEST_F(AnswerTextTest, StopStringsWaitForTheLeastNumberOfTokens) {
  AnswerText text = make({.tokens_min = 4, .stop = {"x"}});
  EXPECT_EQ(feed(text, "xxxx"), "xxx");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.tokens(), 4u);
}

}  // namespace
}  // namespace quire
