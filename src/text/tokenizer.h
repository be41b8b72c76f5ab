// text/tokenizer.h - text to token ids and back, equal to the models' own tokenizers.
//
// Built from a VocabSpec, then immutable: one Tokenizer serves all threads. Special tokens are
// recognised only in text that the caller trusts. Elsewhere their spelling is ordinary text, so
// that nothing a user writes can end a turn or open another one.
//
//   TRY(Tokenizer tokenizer, Tokenizer::create(std::move(spec)));
//   std::vector<TokenId> ids;
//   ids = tokenizer.encode("Hello", {.add_special = true});  // BOS if the model has one
//   ids = tokenizer.encode("<|im_start|>user\n", {.parse_special = true});
//   ids = tokenizer.encode(spans);   // a rendered chat: template text is trusted, contents are not
//   std::string text = tokenizer.decode(ids, {.skip_special = true});
//
// Bytes that are not UTF-8 are kept: in a byte-level vocabulary they are bytes like others, in a
// sentencepiece one they become byte tokens. A byte no token can spell (SmolLM2 lacks U+0004 and a
// few more) is dropped, as in `tokenizers`.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/vocab.h"

namespace quire {

struct EncodeOptions {
  bool parse_special = false;  // spellings of control tokens become those tokens
  bool add_special = false;    // BOS and EOS where the model asks for them
};

struct DecodeOptions {
  bool skip_special = false;
};

// A stretch of text and whether control tokens may be read in it. Words may cross from one span
// into the next (as in the text they make together); a control token must lie within one trusted
// span.
struct TextSpan {
  std::string_view text;
  bool trusted = false;
};

struct TokenizerTables;

class Tokenizer {
 public:
  static Result<Tokenizer> create(VocabSpec spec);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Returns early, with the first tokens, where base/stop.h says so.
  std::vector<TokenId> encode(std::string_view text, EncodeOptions options = {}) const;
  std::vector<TokenId> encode(std::span<const TextSpan> spans, bool add_special = false) const;

  // The bytes a token stands for: not always whole characters (text/detokenizer.h joins them).
  // Empty for ids that are no token.
  std::string_view piece(TokenId id) const;
  std::string decode(std::span<const TokenId> ids,
                     DecodeOptions options = {}) const;  // bytes, perhaps not UTF-8

  TokenId find(std::string_view spelling)
      const;  // a control or user-defined token by its spelling, or kNoToken
  bool is_special(TokenId id) const;  // control or unknown: never part of what a reader sees
  bool is_end_of_generation(TokenId id) const;

  std::size_t size() const;
  std::size_t longest_piece() const;  // in bytes
  TokenId bos() const;
  TokenId eos() const;
  TokenId pad() const;
  TokenId unk()
      const;  // the one special token that text can become, in a vocabulary without byte tokens
  bool add_bos() const;
  const std::vector<TokenId>& end_of_generation() const;

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerTables> tables);
  std::unique_ptr<TokenizerTables> tables_;
};

}  // namespace quire
