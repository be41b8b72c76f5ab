// text/jinja/lexer.h - template source to tokens, with jinja2's whitespace control (trim_blocks and
// lstrip_blocks on).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace quire::jinja {

enum class TokenKind : std::uint8_t {
  text,
  block_begin,
  block_end,
  variable_begin,
  variable_end,
  name,
  string,
  integer,
  number,
  op,
  end,
};

struct Token {
  TokenKind kind;
  int line;
  std::string
      text;  // names and operators as written, strings unescaped, template text after trimming
  Int integer = 0;
  double number = 0;
};

// Throws Failure. The last token is of kind end.
std::vector<Token> tokenize(std::string_view source);
std::string describe(const Token& token);

}  // namespace quire::jinja
