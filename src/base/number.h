// base/number.h - a text that is a number and nothing else.
//
//   double share;
//   if (!parse_number("0.25", share)) ...
#pragma once

#include <charconv>
#include <string_view>

namespace quire {

// False if the text is not a number, has trailing characters, or does not fit T; `to` is then
// undefined.
template <class T>
bool parse_number(std::string_view text, T& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace quire
