#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "text/tiny_vocab.h"
#include "text/utf8.h"

namespace quire {
namespace {

std::string in_parts(std::string_view bytes, std::size_t part) {
  Utf8Stream stream;
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += part) {
    stream.add(bytes.substr(i, part), out);
    EXPECT_TRUE(utf8_valid(out));
  }
  stream.finish(out);
  return out;
}

TEST(Utf8Stream, HoldsBackACharacterUntilItIsWhole) {
  Utf8Stream stream;
  std::string out;
  stream.add("a\xF0\x9F", out);
  EXPECT_EQ(out, "a");
  EXPECT_EQ(stream.held(), 2u);
  stream.add("\x98", out);
  EXPECT_EQ(out, "a");
  stream.add("\x80z", out);
  EXPECT_EQ(out, "a\xF0\x9F\x98\x80z");
  EXPECT_EQ(stream.held(), 0u);
}

TEST(Utf8Stream, ReplacesBytesTheMomentTheyAreKnownToBeWrong) {
  Utf8Stream stream;
  std::string out;
  stream.add("\xFF", out);
  EXPECT_EQ(out, "\uFFFD");
  stream.add("\xE2\x82", out);
  EXPECT_EQ(out, "\uFFFD");
  stream.add("x", out);
  EXPECT_EQ(out, "\uFFFD\uFFFDx");
}

// The expected values are Python's bytes.decode(errors="replace").
TEST(Utf8Stream, CountsErrorsAsUnicodeRecommends) {
  const struct {
    std::string_view bytes, text;
  } cases[] = {
      {"\xC0\x80", "\uFFFD\uFFFD"},
      {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x90\x80", "\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE2\x82\xE2\x82\xAC", "\uFFFD\u20AC"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD\U0001F600"},
      {"a\xE2", "a\uFFFD"},
      {"\x80\xBF", "\uFFFD\uFFFD"},
  };
  for (const auto& [bytes, text] : cases)
    for (const std::size_t part : {1, 2, 3, 7}) EXPECT_EQ(in_parts(bytes, part), text) << part;
}

TEST(Utf8Stream, CuttingTheBytesChangesNothing) {
  Random random(7);
  constexpr std::string_view kBytes = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\xFF\xED\xA0";
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    for (auto n = random.below(12); n > 0; --n) bytes += kBytes[random.below(kBytes.size())];
    EXPECT_EQ(in_parts(bytes, 1 + random.below(4)), in_parts(bytes, 100));
  }
}

TEST(Detokenizer, JoinsTokensAndSkipsControlTokensOnRequest) {
  const Tokenizer t = std::move(Tokenizer::create(tiny_byte_level()).value());
  const std::string text = "low \U0001F469\u200D\U0001F680 \u65E5";
  const auto ids = t.encode(text + "<|end|>", {.parse_special = true});
  std::string all, shown;
  Detokenizer keep(t), skip(t, {.skip_special = true});
  for (const TokenId id : ids) {
    all += keep.add(id);
    shown += skip.add(id);
    EXPECT_TRUE(utf8_valid(shown));
  }
  EXPECT_EQ(all + keep.finish(), text + "<|end|>");
  EXPECT_EQ(shown + skip.finish(), text);
}

}  // namespace
}  // namespace quire
