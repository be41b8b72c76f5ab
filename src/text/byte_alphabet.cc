#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "text/utf8.h"

namespace quire {
namespace {

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// By code point; -1 where the alphabet has no such character.
constexpr auto kByteOf = [] {
  std::array<std::int16_t, 256 + 68> table{};
  table.fill(-1);
  std::size_t moved = 256;
  for (int byte = 0; byte < 256; ++byte)
    table[stands_for_itself(byte) ? static_cast<std::size_t>(byte) : moved++] =
        static_cast<std::int16_t>(byte);
  return table;
}();

}  // namespace

std::optional<std::string> byte_alphabet_decode(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  while (!spelling.empty()) {
    const Utf8Step step = utf8_step(spelling);
    if (step.kind != Utf8Kind::whole) return std::nullopt;
    const char32_t point = utf8_decode(spelling.substr(0, step.length));
    if (point >= kByteOf.size() || kByteOf[point] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteOf[point]);
    spelling.remove_prefix(step.length);
  }
  return bytes;
}

}  // namespace quire
