// text/detokenizer.h - tokens of one sequence to text, as they come, never half a character.
//
// A token may end inside a character (an emoji is often four tokens): those bytes wait for the
// rest. Bytes that can no longer become a character turn into U+FFFD at once, so what has been
// emitted is always valid UTF-8 and is what decoding all bytes at the end would have given. Small
// enough to copy with a sequence that forks.
//
//   Detokenizer detokenizer(tokenizer, {.skip_special = true});
//   for (TokenId id : ids) send(detokenizer.add(id));  // may be empty
//   send(detokenizer.finish());                        // U+FFFD if half a character is left
#pragma once

#include <array>
#include <string>

#include "text/tokenizer.h"

namespace quire {

// The same for plain bytes.
class Utf8Stream {
 public:
  void add(std::string_view bytes, std::string& out);  // appends the characters that are now whole
  void finish(std::string& out);
  std::size_t held() const { return held_; }  // bytes that wait: at most 3

 private:
  std::array<char, 4> bytes_{};
  std::uint8_t held_ = 0;
};

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(&tokenizer), options_(options) {}

  std::string add(TokenId id, bool visible = false);  // visible: though it is special
  std::string finish();

 private:
  const Tokenizer* tokenizer_;  // outlives this
  DecodeOptions options_;
  Utf8Stream stream_;
};

}  // namespace quire
