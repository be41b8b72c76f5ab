// text/vocab.h - what a tokenizer is built from: plain data, filled by the reader of the model file
// (engine/text_parts.cc).
//
// GGUF metadata maps onto it field by field (the names below are the keys after "tokenizer.ggml.");
// a Hugging Face folder goes through vocab_from_tokenizer_json. Nothing here is checked yet:
// Tokenizer::create does that.
//
//   VocabSpec spec;
//   spec.model = VocabModel::byte_level;                        // tokenizer.ggml.model = "gpt2"
//   spec.pre = "smollm";                                        // tokenizer.ggml.pre
//   spec.tokens = ..., spec.types = ..., spec.merges = ...;
//   TRY(Tokenizer tokenizer, Tokenizer::create(std::move(spec)));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/token.h"

namespace quire {

inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// Values as in GGUF's token_type array.
enum class TokenType : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };

enum class VocabModel : std::uint8_t {
  byte_level,     // "gpt2": text is cut by a pattern, bytes are spelled in GPT-2's alphabet, merges
                  // are listed
  sentencepiece,  // "llama": characters, U+2581 for a space, <0xNN> for characters without a token
};

// Where a sentencepiece tokenizer puts the space that the text did not have.
enum class SpacePrefix : std::uint8_t {
  never,
  always,           // before every stretch of text between special tokens
  missing,          // the same, unless the stretch already starts with a space
  missing_at_start  // only at the very start of the text, unless it already starts with a space
};

struct VocabSpec {
  VocabModel model = VocabModel::byte_level;
  std::string pre = "default";      // names an entry of pre_tokenizers() (byte_level only)
  std::vector<std::string> tokens;  // by id, as the file spells them
  std::vector<TokenType> types;     // by id; empty: all normal
  std::vector<float>
      scores;  // by id; sentencepiece without merges: the highest-scoring piece merges first
  std::vector<std::string>
      merges;  // "left right", best first; sentencepiece may have these instead of scores
  std::optional<bool>
      ignore_merges;        // a whole word that is a token stays whole; unset: as `pre` says
  std::optional<bool> nfc;  // text is brought to NFC first; unset: as `pre` says

  TokenId bos = kNoToken, eos = kNoToken, eot = kNoToken, unk = kNoToken, pad = kNoToken;
  std::vector<TokenId>
      end_of_generation;        // besides eos, eot and control tokens with a well-known name
  std::optional<bool> add_bos;  // unset: as `pre` says, and true for sentencepiece
  bool add_eos = false;
  SpacePrefix space_prefix = SpacePrefix::never;  // add_space_prefix: true is `always`
  bool remove_extra_whitespaces = false;  // sentencepiece: trim, and one space for a run of them
};

// The names of tokenizer.ggml.model that Quire reads: "gpt2" and "llama".
Result<VocabModel> vocab_model(std::string_view name);

// A Hugging Face folder's tokenizer.json (byte-level BPE, or sentencepiece-style BPE with byte
// fallback), and its tokenizer_config.json and generation_config.json ("" if absent). An error
// names what is not understood.
Result<VocabSpec> vocab_from_tokenizer_json(std::string_view tokenizer,
                                            std::string_view config = {},
                                            std::string_view generation_config = {});

}  // namespace quire
