// text/utf8.h - well-formed UTF-8, one character at a time.
//
// For tokenizers, the detokenizer and the stop matcher, which all ask what stands at the start of
// some bytes. Ill-formed bytes are grouped as the Unicode standard recommends (and as Python and
// browsers do): the longest prefix of a possible character counts as one error.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace quire {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

enum class Utf8Kind : std::uint8_t { whole, invalid, incomplete };

struct Utf8Step {
  Utf8Kind kind;        // incomplete: the bytes end inside what may become a character
  std::uint8_t length;  // bytes of it, at least 1
};

Utf8Step utf8_step(std::string_view bytes);  // bytes is not empty
bool utf8_valid(std::string_view bytes);

// The code point of a whole character.
char32_t utf8_decode(std::string_view character);

}  // namespace quire
