#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/tokenizer.h"
#include "text/vocab.h"

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kFile[] = R"({
 "added_tokens": [
  {"id": 4, "content": "<|end|>", "special": true},
  {"id": 5, "content": "<think>", "special": false}],
 "normalizer": null,
 "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
 "post_processor": {"type": "TemplateProcessing", "single": [
  {"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]},
 "model": {"type": "BPE", "unk_token": null, "byte_fallback": false, "ignore_merges": false,
  "vocab": {"l": 0, "o": 1, "Ġ": 2, "lo": 3}, "merges": [["l", "o"]]}
})";

std::string with(std::string from, std::string to) {
  std::string text = kFile;
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

std::string error(const std::string& text, std::string_view config = {}) {
  auto spec = vocab_from_tokenizer_json(text, config);
  if (!spec.ok()) return spec.error().message;
  auto made = Tokenizer::create(std::move(spec.value()));
  return made.ok() ? "none" : made.error().message;
}

TEST(VocabJson, ReadsTokensMergesAndTemplate) {
  auto spec = vocab_from_tokenizer_json(
      kFile, R"({"eos_token": {"content": "<|end|>"}, "pad_token": "<think>"})");
  ASSERT_TRUE(spec.ok()) << spec.error().message;
  EXPECT_EQ(spec.value().pre, "gpt-2");
  EXPECT_THAT(spec.value().tokens, ElementsAre("l", "o", "Ġ", "lo", "<|end|>", "<think>"));
  EXPECT_THAT(spec.value().merges, ElementsAre("l o"));
  EXPECT_EQ(spec.value().bos, 4);
  EXPECT_EQ(spec.value().eos, 4);
  EXPECT_EQ(spec.value().pad, 5);
  EXPECT_EQ(spec.value().add_bos, true);
  EXPECT_FALSE(spec.value().add_eos);
  const Tokenizer t = std::move(Tokenizer::create(std::move(spec.value())).value());
  EXPECT_THAT(t.encode("lo lo<think>", {.add_special = true}), ElementsAre(4, 3, 2, 3, 5));
  EXPECT_THAT(t.encode("<|end|>", {.parse_special = true}), ElementsAre(4));
}

TEST(VocabJson, ConfigDecidesAboutBosWhereThereIsNoTemplate) {
  const std::string text = with("\"TemplateProcessing\"", "\"ByteLevel\"");
  const char* config = R"({"bos_token": "<|end|>", "add_bos_token": true})";
  EXPECT_EQ(vocab_from_tokenizer_json(text, config).value().add_bos, true);
  EXPECT_EQ(vocab_from_tokenizer_json(text, config).value().bos, 4);
  EXPECT_EQ(vocab_from_tokenizer_json(text).value().add_bos, false);
}

TEST(VocabJson, GenerationConfigNamesWhatEndsAnAnswer) {
  const auto ends = [](const char* generation) {
    auto spec = vocab_from_tokenizer_json(kFile, {}, generation);
    EXPECT_TRUE(spec.ok());
    return spec.value().end_of_generation;
  };
  EXPECT_THAT(ends(R"({"eos_token_id": [4, 5]})"), ElementsAre(4, 5));
  EXPECT_THAT(ends(R"({"eos_token_id": 5})"), ElementsAre(5));
  EXPECT_THAT(ends(R"({"eos_token_id": [6, -1, "x", null]})"), ElementsAre());
  EXPECT_THAT(ends("{}"), ElementsAre());
}

TEST(VocabJson, NamesWhatItDoesNotSupport) {
  EXPECT_EQ(error(kFile), "none");
  EXPECT_THAT(error(with("\"BPE\"", "\"Unigram\"")), HasSubstr("model type 'Unigram'"));
  EXPECT_THAT(error(with("\"normalizer\": null", "\"normalizer\": {\"type\": \"Lowercase\"}")),
              HasSubstr("normalizer 'Lowercase'"));
  EXPECT_THAT(error(with("\"type\": \"ByteLevel\"", "\"type\": \"Whitespace\"")),
              HasSubstr("pre_tokenizer 'Whitespace'"));
  EXPECT_THAT(error(with("\"add_prefix_space\": false", "\"add_prefix_space\": true")),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(
      error(with(
          "\"type\": \"ByteLevel\"",
          "\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a+)+b\"}, \"behavior\": \"Isolated\"")),
      HasSubstr("is not supported"));
  EXPECT_THAT(error(with("\"use_regex\": true", "\"use_regex\": false")), HasSubstr("patterns"));
  EXPECT_THAT(error(with("TemplateProcessing", "BertProcessing")),
              HasSubstr("post_processor 'BertProcessing'"));
  EXPECT_THAT(error(with("\"unk_token\": null", "\"end_of_word_suffix\": \"</w>\"")),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(error(with("\"unk_token\": null", "\"dropout\": 0.1")), HasSubstr("dropout"));
  EXPECT_THAT(error(with("\"special\": true", "\"special\": true, \"rstrip\": true")),
              HasSubstr("'<|end|>' with rstrip"));
}

TEST(VocabJson, RefusesWhatIsBroken) {
  EXPECT_THAT(error("["), HasSubstr("not JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(error("{}"), HasSubstr("no 'model'"));
  EXPECT_THAT(error(std::string(100'000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(error(with("\"lo\": 3", "\"lo\": 3000000000")), HasSubstr("has id 3000000000"));
  EXPECT_THAT(error(with("\"lo\": 3", "\"lo\": -1")), HasSubstr("has id -1"));
  EXPECT_THAT(error(with("\"lo\": 3", "\"lo\": 2")), HasSubstr("share the id 2"));
  EXPECT_THAT(error(with("\"lo\": 3", "\"lo\": 3.5")), HasSubstr("no integer"));
  EXPECT_THAT(error(with("\"lo\": 3", "\"lo\": [3]")), HasSubstr("model.vocab"));
  EXPECT_THAT(error(with("[\"l\", \"o\"]", "[\"l\"]")), HasSubstr("not a pair"));
  EXPECT_THAT(error(with("[\"l\", \"o\"]", "\"l x\"")), HasSubstr("names a token"));
  EXPECT_THAT(error(with("{\"id\": \"<|end|>\"", "{\"id\": \"<|x|>\"")),
              HasSubstr("'<|x|>', which is no token"));
  EXPECT_THAT(error(with("\"content\": \"<think>\"", "\"content\": \"\"")),
              HasSubstr("lacks 'content'"));
  EXPECT_THAT(error(kFile, "{"), HasSubstr("tokenizer_config.json is not JSON"));
}

}  // namespace
}  // namespace quire
