#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>

#include "text/tiny_vocab.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Tokenizer make(VocabSpec spec) {
  auto made = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(made.ok()) << made.error().message;
  return std::move(made.value());
}

std::vector<std::string> pieces(const Tokenizer& t, std::string_view text,
                                EncodeOptions options = {}) {
  std::vector<std::string> out;
  for (const TokenId id : t.encode(text, options)) out.emplace_back(t.piece(id));
  return out;
}

TEST(ByteLevel, MergesBestRankFirstInsideWords) {
  const Tokenizer t = make(tiny_byte_level());
  EXPECT_THAT(pieces(t, "low lower"), ElementsAre("low", " low", "er"));
  EXPECT_THAT(pieces(t, "est lo"), ElementsAre("est", " ", "lo"));
}

TEST(ByteLevel, WholeWordStaysWholeOnlyWhenMergesAreIgnored) {
  VocabSpec spec = tiny_byte_level();  // has "lower", which no merge makes
  EXPECT_THAT(pieces(make(spec), "lower lower"), ElementsAre("low", "er", " low", "er"));
  spec.ignore_merges = true;
  EXPECT_THAT(pieces(make(spec), "lower lower"), ElementsAre("lower", " low", "er"));
}

TEST(ByteLevel, KeepsBytesThatAreNotUtf8) {
  const Tokenizer t = make(tiny_byte_level());
  const std::string text = "lo\xFF\xC3w \xE2\x82";
  EXPECT_EQ(t.decode(t.encode(text)), text);
}

TEST(ByteLevel, DropsBytesWithoutAToken) {
  VocabSpec spec = tiny_byte_level();
  spec.types['x'] = TokenType::unused;
  EXPECT_THAT(pieces(make(spec), "lxo"), ElementsAre("lo"));
}

TEST(Special, ControlTokensAreReadOnlyWhereTheCallerVouches) {
  for (const VocabSpec& spec : {tiny_byte_level(), tiny_sentencepiece()}) {
    const std::string eos = spec.tokens[static_cast<std::size_t>(spec.eos)];
    const Tokenizer t = make(spec);
    EXPECT_THAT(t.encode(eos, {.parse_special = true}), ElementsAre(spec.eos));
    for (const TokenId id : t.encode("a" + eos + eos)) EXPECT_FALSE(t.is_special(id));
    EXPECT_EQ(t.find(eos), spec.eos);
    EXPECT_TRUE(t.is_special(spec.eos));
    EXPECT_TRUE(t.is_end_of_generation(spec.eos));
    EXPECT_FALSE(t.is_end_of_generation(spec.bos));
  }
}

TEST(Special, UserDefinedTokensAreReadEverywhere) {
  const Tokenizer t = make(tiny_byte_level());
  EXPECT_THAT(pieces(t, "lo<think>low"), ElementsAre("lo", "<think>", "low"));
}

TEST(Special, SpansJoinAsTextButControlTokensStayInsideTrustedOnes) {
  const Tokenizer t = make(tiny_byte_level());
  const TokenId end = t.find("<|end|>"), start = t.find("<|start|>");
  const std::vector<TextSpan> chat = {
      {"<|start|>lo", true}, {"w<|end|>", false}, {"", false}, {"<|end|>", true}};
  const std::vector<TokenId> ids = t.encode(chat);
  EXPECT_EQ(ids.front(), start);
  EXPECT_EQ(t.piece(ids[1]), "low");  // across the edge, as in the joined text
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1);
  EXPECT_EQ(ids.back(), end);
  EXPECT_EQ(t.decode(ids), "<|start|>low<|end|><|end|>");
  // Half a control token from each side is no control token.
  const std::vector<TextSpan> split = {
      {"<|e", true}, {"nd|>", true}, {"<|e", false}, {"nd|>", true}};
  for (const TokenId id : t.encode(split)) EXPECT_FALSE(t.is_special(id));
  EXPECT_TRUE(t.encode(std::span<const TextSpan>{}).empty());
}

TEST(Special, AddsBosAndEosWhereTheModelAsks) {
  VocabSpec spec = tiny_byte_level();
  EXPECT_EQ(make(spec).encode("lo", {.add_special = true}).size(), 1u);
  spec.add_bos = spec.add_eos = true;
  const std::vector<TokenId> ids = make(spec).encode("lo", {.add_special = true});
  EXPECT_EQ(ids.front(), spec.bos);
  EXPECT_EQ(ids.back(), spec.eos);
  EXPECT_EQ(make(spec).encode("lo").size(), 1u);
  spec.add_bos.reset();  // files of the Llama 3 family often do not say
  spec.add_eos = false;
  EXPECT_FALSE(make(spec).add_bos());
  spec.pre = "llama-bpe";
  EXPECT_TRUE(make(spec).add_bos());
}

TEST(SentencePiece, MergesBestScoreFirst) {
  const Tokenizer t = make(tiny_sentencepiece());
  EXPECT_THAT(pieces(t, " lowest lower"), ElementsAre(" low", "est", " lower"));
  EXPECT_THAT(pieces(t, "日本"), ElementsAre("日本"));
}

TEST(SentencePiece, PiecesMayCrossASpace) {
  const Tokenizer t = make(tiny_sentencepiece());
  EXPECT_THAT(pieces(t, "a b"), ElementsAre("a b"));
  EXPECT_THAT(pieces(t, "a l"), ElementsAre("a", " l"));
}

TEST(SentencePiece, CharactersWithoutATokenBecomeBytes) {
  const Tokenizer t = make(tiny_sentencepiece());
  EXPECT_THAT(pieces(t, "aü\xFF"), ElementsAre("a", "\xC3", "\xBC", "\xFF"));
  VocabSpec without = tiny_sentencepiece();
  for (TokenType& type : without.types)
    if (type == TokenType::byte) type = TokenType::unused;
  EXPECT_THAT(make(without).encode("aüüa").size(), 3u);  // one <unk> for the run
}

TEST(SentencePiece, SpellingOfAByteTokenIsText) {
  const Tokenizer t = make(tiny_sentencepiece());
  EXPECT_EQ(t.decode(t.encode("<0x41>")), "<0x41>");
}

TEST(SentencePiece, RunsOfSpacesMergeBeforeWords) {
  const Tokenizer t = make(tiny_sentencepiece());
  EXPECT_THAT(pieces(t, "     low"), ElementsAre("    ", " low"));
  EXPECT_THAT(pieces(t, "  low"), ElementsAre("  ", "l", "ow"));
}

TEST(SentencePiece, SpacePrefixComesAndGoes) {
  VocabSpec spec = tiny_sentencepiece();
  spec.space_prefix = SpacePrefix::always;
  const Tokenizer t = make(spec);
  EXPECT_THAT(pieces(t, "low<b>low"), ElementsAre(" low", "<b>", " low"));
  EXPECT_EQ(t.decode(t.encode("low")), "low");
  EXPECT_EQ(t.decode(t.encode(" low")), " low");
  spec.space_prefix = SpacePrefix::missing_at_start;
  EXPECT_THAT(pieces(make(spec), "low<b>low"), ElementsAre(" low", "<b>", "l", "ow"));
  EXPECT_THAT(pieces(make(spec), " low"), ElementsAre(" low"));
  spec.space_prefix = SpacePrefix::never;
  spec.remove_extra_whitespaces = true;
  EXPECT_THAT(pieces(make(spec), "  low   est "), ElementsAre("l", "ow", " ", "est"));
}

TEST(Tokenizer, AMegabyteOfOneLetterTakesNoQuadraticTime) {
  for (VocabSpec spec : {tiny_byte_level(), tiny_sentencepiece()}) {
    const Tokenizer t = make(std::move(spec));
    for (const char* unit : {"a", " ", "A", "\xCC\x81", "<", "aa b"}) {
      std::string text;
      const std::size_t size = *unit == 'a' ? 1'000'000 : 250'000;
      while (text.size() < size) text += unit;
      const std::clock_t begin = std::clock();  // of this process: others may be busy
      EXPECT_EQ(t.decode(t.encode(text)), text);
      EXPECT_LT(std::clock() - begin, 20 * CLOCKS_PER_SEC) << unit;
    }
  }
}

TEST(Tokenizer, RefusesWhatDoesNotFitTogether) {
  const auto message = [](auto change) {
    VocabSpec spec = tiny_byte_level();
    change(spec);
    const auto made = Tokenizer::create(std::move(spec));
    return made.ok() ? std::string("made") : made.error().message;
  };
  EXPECT_THAT(message([](VocabSpec& s) { s.tokens.clear(); }), HasSubstr("0 tokens"));
  EXPECT_THAT(message([](VocabSpec& s) { s.types.pop_back(); }), HasSubstr("token types"));
  EXPECT_THAT(message([](VocabSpec& s) { s.types[3] = TokenType{9}; }),
              HasSubstr("token 3 has type 9"));
  EXPECT_THAT(message([](VocabSpec& s) { s.scores = {1.0f}; }), HasSubstr("1 scores"));
  EXPECT_THAT(message([](VocabSpec& s) { s.eos = 5000; }), HasSubstr("eos token id 5000"));
  EXPECT_THAT(message([](VocabSpec& s) { s.bos = 5000; }), HasSubstr("bos token id 5000"));
  EXPECT_THAT(message([](VocabSpec& s) { s.merges.push_back("lo"); }), HasSubstr("is not a pair"));
  EXPECT_THAT(message([](VocabSpec& s) { s.merges.push_back("lo zz"); }),
              HasSubstr("names a token"));
  EXPECT_THAT(message([](VocabSpec& s) { s.pre = "nonesuch"; }),
              HasSubstr("no pre-tokenizer 'nonesuch'"));
  EXPECT_THAT(message([](VocabSpec& s) { s.tokens[0] = std::string(100'000, 'x'); }),
              HasSubstr("token 0 has"));
}

TEST(Tokenizer, IdsThatAreNoTokensHaveNoText) {
  const Tokenizer t = make(tiny_byte_level());
  EXPECT_EQ(t.piece(-1), "");
  EXPECT_EQ(t.piece(1 << 30), "");
  EXPECT_FALSE(t.is_special(-1));
  EXPECT_FALSE(t.is_special(1 << 30));
}

}  // namespace
}  // namespace quire
