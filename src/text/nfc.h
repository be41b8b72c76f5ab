// text/nfc.h - Unicode normalization form C, for the tokenizers that ask for it (Qwen).
#pragma once

#include <string>
#include <string_view>

namespace quire {

// Appends text in NFC. Bytes that are not UTF-8 stay as they are, and so does a stretch with more
// than 1,024 combining marks in a row: sorting them would take quadratic time, and no language
// writes them.
void append_nfc(std::string_view text, std::string& out);

}  // namespace quire
