#include "text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "text/nfc.h"

namespace quire {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> words(std::string_view name, std::string_view text) {
  const auto pre = PreTokenizer::create(name);
  EXPECT_TRUE(pre.ok());
  std::vector<std::string> out;
  std::size_t bytes = 0;
  pre.value().split(text, [&](std::string_view word) {
    EXPECT_EQ(word.data(), text.data() + bytes);
    bytes += word.size();
    out.emplace_back(word);
  });
  EXPECT_EQ(bytes, text.size());
  return out;
}

TEST(PreTokenizer, CutsAsTheRowSays) {
  EXPECT_THAT(words("gpt-2", "It's  12 €"), ElementsAre("It", "'s", " ", " 12", " €"));
  EXPECT_THAT(words("smollm", "It's 12"), ElementsAre("It", "'s", " ", "1", "2"));
  EXPECT_THAT(words("llama-bpe", "IT'S 12345"), ElementsAre("IT", "'S", " ", "123", "45"));
  EXPECT_THAT(words("qwen2", "a\n\n  b 12"), ElementsAre("a", "\n\n", " ", " b", " ", "1", "2"));
  EXPECT_THAT(words("tekken", "camelCase ABCd"), ElementsAre("camel", "Case", " ABCd"));
}

TEST(PreTokenizer, EveryRowCompilesAndTakesLongTextInLinearTime) {
  const PreTokenizerEntry* previous = nullptr;
  for (const PreTokenizerEntry& entry : pre_tokenizers()) {
    const auto pre = PreTokenizer::create(entry.name);
    ASSERT_TRUE(pre.ok()) << entry.name;
    if (previous != nullptr && previous->patterns == entry.patterns)
      continue;  // another name for it
    previous = &entry;
    for (const char* unit : {"a", "A", " ", "\n", "1", "!", "\xE4\xB8\xAD", "\xCC\x81", "\xFF",
                             " \n", "'s", "aA", "\t"})
      for (const char* end : {"x", "1", "\xE4\xB8\xAD"}) {
        std::string text;
        while (text.size() < 100'000) text += unit;
        text += end;
        std::size_t bytes = 0;
        const std::clock_t begin = std::clock();  // of this process: others may be busy
        pre.value().split(text, [&](std::string_view word) { bytes += word.size(); });
        EXPECT_LT(std::clock() - begin, 10 * CLOCKS_PER_SEC) << entry.name << " '" << unit << "'";
        EXPECT_EQ(bytes, text.size());
      }
  }
}

TEST(PreTokenizer, MongolianVowelSeparatorIsNoSpace) {
  EXPECT_THAT(words("gpt-2", "a\u180E"), ElementsAre("a", "\u180E"));
  EXPECT_THAT(words("gpt-2", " \u180E"), ElementsAre(" \u180E"));
}

TEST(Nfc, ComposesAndLeavesOtherBytesAlone) {
  const auto nfc = [](std::string_view text) {
    std::string out;
    append_nfc(text, out);
    return out;
  };
  EXPECT_EQ(nfc("cafe\u0301 A\u030A\xFFo\u0308\xE2\x82"), "caf\u00E9 \u00C5\xFF\u00F6\xE2\x82");
  EXPECT_EQ(nfc("\u1100\u1161\u11A8 q\u0307\u0323 \u212B"), "\uAC01 q\u0323\u0307 \u00C5");
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("plain"), "plain");
  std::string marks = "e";
  for (int i = 0; i < 300'000; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  EXPECT_EQ(nfc(marks), marks);
}

}  // namespace
}  // namespace quire
