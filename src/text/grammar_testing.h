// text/grammar_testing.h - asks a grammar about whole texts, byte by byte, for tests and fuzzers.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar_compiler.h"
#include "text/tiny_vocab.h"

namespace quire {

// A vocabulary in which every byte is a token, so that a grammar can be asked about any text.
inline Tokenizer byte_tokenizer() {
  return std::move(Tokenizer::create(tiny_byte_level()).value());
}

inline bool bit(std::span<const std::uint32_t> bits, TokenId token) {
  return bits[token / 32] >> token % 32 & 1;
}

// Feeds the text; false where a byte may not come.
inline bool feed(GrammarMatcher& m, std::string_view text) {
  for (const char c : text)
    if (!m.accept(static_cast<TokenId>(static_cast<unsigned char>(c)))) return false;
  return true;
}

enum class Verdict { refused, unfinished, whole };

inline Verdict judge(const CompiledGrammar& grammar, std::string_view text) {
  GrammarMatcher m = grammar.start();
  if (!feed(m, text)) return Verdict::refused;
  return m.may_end() ? Verdict::whole : Verdict::unfinished;
}

// The tokens that fill() allows.
inline std::vector<TokenId> allowed(GrammarMatcher& m, std::uint32_t vocabulary) {
  std::vector<std::uint32_t> bits((vocabulary + 31) / 32);
  std::vector<TokenId> out;
  const bool masked = m.fill(bits);
  for (TokenId t = 0; t < vocabulary; ++t)
    if (!masked || bit(bits, t)) out.push_back(t);
  return out;
}

}  // namespace quire
