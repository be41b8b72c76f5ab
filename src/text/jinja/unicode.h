// text/jinja/unicode.h - characters as Python's str sees them: code points, spaces, case, what
// repr() escapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire::jinja {

struct CodePoint {
  std::uint32_t
      value;         // a byte that is not UTF-8 counts as one character, with value 0xDC00 + byte
  std::size_t size;  // bytes it takes
};

CodePoint code_point_at(std::string_view text, std::size_t at);
CodePoint code_point_before(std::string_view text, std::size_t end);
void append_utf8(std::string& out, std::uint32_t value);
std::size_t count_code_points(std::string_view text);
Vector<std::size_t> code_point_offsets(
    std::string_view text);  // of each one, and the size at the end

bool is_space(std::uint32_t c);       // str.isspace and re's \s
bool is_line_break(std::uint32_t c);  // what str.splitlines splits at
bool is_printable(std::uint32_t c);   // what repr() leaves alone
bool is_letter(std::uint32_t c);      // str.isalpha
bool is_cased(std::uint32_t c);
bool is_upper(std::uint32_t c);
bool is_lower(std::uint32_t c);
bool is_digit(std::uint32_t c);    // str.isdecimal
bool is_numeric(std::uint32_t c);  // str.isnumeric, nearly: no ideographs

// The full mappings, which may give several characters.
void append_upper(std::string& out, std::uint32_t c);
void append_title(std::string& out, std::uint32_t c);
// Needs the text around for the Greek final sigma.
void append_lower(std::string& out, std::string_view text, std::size_t at);

}  // namespace quire::jinja
