// text/byte_alphabet.h - GPT-2's spelling of bytes as printable characters.
//
// Printable Latin-1 bytes stand for themselves; the other 68 are spelled U+0100, U+0101, ... in
// order. A vocabulary file is written in it ("Ġthe" is " the"); text never is.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quire {

// The bytes a spelling stands for, or nothing when it uses a character outside the alphabet.
std::optional<std::string> byte_alphabet_decode(std::string_view spelling);

}  // namespace quire
