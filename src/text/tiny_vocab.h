// text/tiny_vocab.h - vocabularies of a few hundred tokens, small enough to read, for tests and
// fuzzers.
#pragma once

#include <string>
#include <vector>

#include "text/vocab.h"

namespace quire {

// All bytes, a handful of merges ("lo", "low", " low", "er", ...) and two control tokens. Id of
// byte b: b.
inline VocabSpec tiny_byte_level() {
  VocabSpec spec;
  spec.pre = "gpt-2";
  const auto utf8 = [](unsigned point) {
    if (point < 0x80) return std::string(1, static_cast<char>(point));
    return std::string{static_cast<char>(0xC0 | point >> 6),
                       static_cast<char>(0x80 | (point & 0x3F))};
  };
  unsigned moved =
      256;  // GPT-2's alphabet, written out once more: the test should not trust the code
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte < 173) || byte > 173;
    spec.tokens.push_back(utf8(printable ? byte : moved++));
  }
  spec.merges = {"l o", "lo w",  "Ġ low", "e r", "Ġ Ġ", "ĠĠ ĠĠ",
                 "a a", "aa aa", "Ã ©",   "e s", "es t"};
  for (std::string merge : spec.merges) {
    merge.erase(merge.find(' '), 1);
    spec.tokens.push_back(merge);
  }
  spec.tokens.insert(spec.tokens.end(), {"<|end|>", "<|start|>", "<think>", "lower"});
  spec.types.assign(spec.tokens.size(), TokenType::normal);
  const std::size_t special = 256 + spec.merges.size();
  spec.types[special] = spec.types[special + 1] = TokenType::control;
  spec.types[special + 2] = TokenType::user_defined;
  spec.eos = static_cast<TokenId>(special);
  spec.bos = static_cast<TokenId>(special + 1);
  return spec;
}

// <unk>, two control tokens, 256 byte tokens, a few pieces with scores, and user-defined runs of
// spaces as in Gemma.
inline VocabSpec tiny_sentencepiece() {
  VocabSpec spec;
  spec.model = VocabModel::sentencepiece;
  const auto add = [&](std::string token, TokenType type, float score = 0) {
    spec.tokens.push_back(std::move(token));
    spec.types.push_back(type);
    spec.scores.push_back(score);
  };
  add("<unk>", TokenType::unknown);
  add("<bos>", TokenType::control);
  add("<eos>", TokenType::control);
  for (int byte = 0; byte < 256; ++byte) {
    const char* digits = "0123456789ABCDEF";
    add(std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">", TokenType::byte);
  }
  add("  ", TokenType::user_defined, -1000);
  add("    ", TokenType::user_defined, -1000);
  add("<b>", TokenType::user_defined, -1000);
  float score = -1;
  for (const char* piece : {"▁l", "ow", "▁low", "er", "▁lower", "st", "est", "▁b", "a▁b", "aa",
                            "é",  "日", "日本", "▁",  "a",      "b",  "e",   "l",  "o",   "r",
                            "s",  "t",  "w",    "本", "<",      ">",  "n",   "u",  "k"})
    add(piece, TokenType::normal, score--);
  spec.unk = 0;
  spec.bos = 1;
  spec.eos = 2;
  return spec;
}

}  // namespace quire
