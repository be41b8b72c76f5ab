// base/hex.h - bytes as lower-case hexadecimal digits, and back.
//
//   to_hex(std::span(digest));            // "9f86d0..."
//   std::array<std::uint8_t, 32> digest;
//   if (!from_hex(text, digest)) ...      // wrong length, or not digits
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace quire {

inline std::string to_hex(std::span<const std::uint8_t> bytes) {
  std::string out;
  for (const std::uint8_t b : bytes) {
    out += "0123456789abcdef"[b >> 4];
    out += "0123456789abcdef"[b & 15];
  }
  return out;
}

// False if `text` is not exactly the digits of `to`; `to` is then undefined.
inline bool from_hex(std::string_view text, std::span<std::uint8_t> to) {
  if (text.size() != to.size() * 2) return false;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (std::size_t i = 0; i < to.size(); ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    to[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace quire
