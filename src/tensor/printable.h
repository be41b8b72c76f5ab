// tensor/printable.h - names out of untrusted files, fit for an error message.
#pragma once

#include <string>
#include <string_view>

namespace quire {

// In quotes, control and non-ASCII bytes as '?', cut after 96 characters.
inline std::string printable(std::string_view text) {
  constexpr std::size_t kMax = 96;
  std::string out = "'";
  for (const char c : text.substr(0, kMax)) out += c >= ' ' && c <= '~' ? c : '?';
  out += text.size() > kMax ? "...'" : "'";
  return out;
}

}  // namespace quire
