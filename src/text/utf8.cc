#include "text/utf8.h"

#include "base/check.h"

namespace quire {

Utf8Step utf8_step(std::string_view bytes) {
  DCHECK(!bytes.empty());
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {Utf8Kind::whole, 1};
  const int need = lead >= 0xC2 && lead <= 0xDF   ? 2
                   : lead >= 0xE0 && lead <= 0xEF ? 3
                   : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                  : 0;
  if (need == 0) return {Utf8Kind::invalid, 1};
  // The second byte's range rules out overlong forms, surrogates and what lies past U+10FFFF.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (int i = 1; i < need; ++i) {
    const auto length = static_cast<std::uint8_t>(i);
    if (static_cast<std::size_t>(i) == bytes.size()) return {Utf8Kind::incomplete, length};
    const unsigned char c = at(static_cast<std::size_t>(i));
    if (c < (i == 1 ? low : 0x80) || c > (i == 1 ? high : 0xBF)) return {Utf8Kind::invalid, length};
  }
  return {Utf8Kind::whole, static_cast<std::uint8_t>(need)};
}

bool utf8_valid(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    if (step.kind != Utf8Kind::whole) return false;
    bytes.remove_prefix(step.length);
  }
  return true;
}

char32_t utf8_decode(std::string_view character) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return at(0);
  char32_t point = at(0) & (0x7Fu >> character.size());
  for (std::size_t i = 1; i < character.size(); ++i) point = point << 6 | (at(i) & 0x3Fu);
  return point;
}

}  // namespace quire
