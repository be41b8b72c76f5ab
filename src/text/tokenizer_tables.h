// text/tokenizer_tables.h - what a Tokenizer holds. tokenizer_build.cc fills it and tokenizer.cc
// uses it; nothing else includes it.
#pragma once

#include <array>
#include <atomic>
#include <bitset>
#include <optional>
#include <unordered_map>
#include <vector>

#include "text/bpe.h"
#include "text/pre_tokenizer.h"
#include "text/special.h"
#include "text/token_map.h"
#include "text/tokenizer.h"

namespace quire {

struct TokenizerTables {
  // Whether the merges build a token from its own bytes; a word with those bytes is then that
  // token, without merging. Determined when the word is first seen; threads that do so at once
  // write the same answer.
  enum Whole : std::uint8_t { kUntried, kWhole, kInParts };

  VocabSpec
      spec;  // tokens and merges are gone after create: bytes, pieces and merges below hold them
  bool ignore_merges = false, nfc = false,
       add_bos = false;             // the spec's, or those of the entry that `pre` names
  std::optional<PreTokenizer> pre;  // byte_level

  TokenBytes bytes;         // what each token stands for
  std::size_t longest = 0;  // of these
  TokenMap pieces;          // the tokens that text is made of: normal and user-defined
  std::unique_ptr<std::atomic<std::uint8_t>[]> whole;  // by id, a Whole
  std::unordered_map<std::string, TokenId> named;  // the others, and user-defined ones, by spelling
  SpecialMatcher special;                          // control, unknown and user-defined tokens

  MergeMap merges;  // by pair; unless
  std::vector<std::uint32_t>
      ranks;  // by id: sentencepiece scores as ranks (not empty: used instead of merges)
  std::array<TokenId, 256> byte_token;  // byte_level: where merging starts; sentencepiece: <0xNN>
  // sentencepiece: [b][c] is set when some piece goes on past "b, space, c"; elsewhere text is cut
  // before a space.
  std::vector<std::bitset<256>> crosses;

  bool is_control(TokenId id) const {
    const TokenType type = spec.types[static_cast<std::size_t>(id)];
    return type == TokenType::control || type == TokenType::unknown;
  }
};

}  // namespace quire
