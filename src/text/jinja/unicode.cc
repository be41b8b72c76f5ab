#include "text/jinja/unicode.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/jinja/meter.h"

namespace quire::jinja {
namespace {

struct SpecialCase {
  std::uint32_t from;
  const char* upper;
  const char* title;
};

// Characters whose upper case is more than one character (Unicode's SpecialCasing).
constexpr SpecialCase kSpecialCases[] = {
    // clang-format off
    {0xdf, "SS", "Ss"}, {0x149, "ʼN", "ʼN"}, {0x1f0, "J̌", "J̌"}, {0x390, "Ϊ́", "Ϊ́"},
    {0x3b0, "Ϋ́", "Ϋ́"}, {0x587, "ԵՒ", "Եւ"}, {0x1e96, "H̱", "H̱"}, {0x1e97, "T̈", "T̈"},
    {0x1e98, "W̊", "W̊"}, {0x1e99, "Y̊", "Y̊"}, {0x1e9a, "Aʾ", "Aʾ"}, {0x1f50, "Υ̓", "Υ̓"},
    {0x1f52, "Υ̓̀", "Υ̓̀"}, {0x1f54, "Υ̓́", "Υ̓́"}, {0x1f56, "Υ̓͂", "Υ̓͂"}, {0x1f80, "ἈΙ", "ᾈ"},
    {0x1f81, "ἉΙ", "ᾉ"}, {0x1f82, "ἊΙ", "ᾊ"}, {0x1f83, "ἋΙ", "ᾋ"}, {0x1f84, "ἌΙ", "ᾌ"}, {0x1f85, "ἍΙ", "ᾍ"},
    {0x1f86, "ἎΙ", "ᾎ"}, {0x1f87, "ἏΙ", "ᾏ"}, {0x1f88, "ἈΙ", "ᾈ"}, {0x1f89, "ἉΙ", "ᾉ"}, {0x1f8a, "ἊΙ", "ᾊ"},
    {0x1f8b, "ἋΙ", "ᾋ"}, {0x1f8c, "ἌΙ", "ᾌ"}, {0x1f8d, "ἍΙ", "ᾍ"}, {0x1f8e, "ἎΙ", "ᾎ"}, {0x1f8f, "ἏΙ", "ᾏ"},
    {0x1f90, "ἨΙ", "ᾘ"}, {0x1f91, "ἩΙ", "ᾙ"}, {0x1f92, "ἪΙ", "ᾚ"}, {0x1f93, "ἫΙ", "ᾛ"}, {0x1f94, "ἬΙ", "ᾜ"},
    {0x1f95, "ἭΙ", "ᾝ"}, {0x1f96, "ἮΙ", "ᾞ"}, {0x1f97, "ἯΙ", "ᾟ"}, {0x1f98, "ἨΙ", "ᾘ"}, {0x1f99, "ἩΙ", "ᾙ"},
    {0x1f9a, "ἪΙ", "ᾚ"}, {0x1f9b, "ἫΙ", "ᾛ"}, {0x1f9c, "ἬΙ", "ᾜ"}, {0x1f9d, "ἭΙ", "ᾝ"}, {0x1f9e, "ἮΙ", "ᾞ"},
    {0x1f9f, "ἯΙ", "ᾟ"}, {0x1fa0, "ὨΙ", "ᾨ"}, {0x1fa1, "ὩΙ", "ᾩ"}, {0x1fa2, "ὪΙ", "ᾪ"}, {0x1fa3, "ὫΙ", "ᾫ"},
    {0x1fa4, "ὬΙ", "ᾬ"}, {0x1fa5, "ὭΙ", "ᾭ"}, {0x1fa6, "ὮΙ", "ᾮ"}, {0x1fa7, "ὯΙ", "ᾯ"}, {0x1fa8, "ὨΙ", "ᾨ"},
    {0x1fa9, "ὩΙ", "ᾩ"}, {0x1faa, "ὪΙ", "ᾪ"}, {0x1fab, "ὫΙ", "ᾫ"}, {0x1fac, "ὬΙ", "ᾬ"}, {0x1fad, "ὭΙ", "ᾭ"},
    {0x1fae, "ὮΙ", "ᾮ"}, {0x1faf, "ὯΙ", "ᾯ"}, {0x1fb2, "ᾺΙ", "Ὰͅ"}, {0x1fb3, "ΑΙ", "ᾼ"},
    {0x1fb4, "ΆΙ", "Άͅ"}, {0x1fb6, "Α͂", "Α͂"}, {0x1fb7, "Α͂Ι", "ᾼ͂"}, {0x1fbc, "ΑΙ", "ᾼ"},
    {0x1fc2, "ῊΙ", "Ὴͅ"}, {0x1fc3, "ΗΙ", "ῌ"}, {0x1fc4, "ΉΙ", "Ήͅ"}, {0x1fc6, "Η͂", "Η͂"},
    {0x1fc7, "Η͂Ι", "ῌ͂"}, {0x1fcc, "ΗΙ", "ῌ"}, {0x1fd2, "Ϊ̀", "Ϊ̀"}, {0x1fd3, "Ϊ́", "Ϊ́"},
    {0x1fd6, "Ι͂", "Ι͂"}, {0x1fd7, "Ϊ͂", "Ϊ͂"}, {0x1fe2, "Ϋ̀", "Ϋ̀"}, {0x1fe3, "Ϋ́", "Ϋ́"},
    {0x1fe4, "Ρ̓", "Ρ̓"}, {0x1fe6, "Υ͂", "Υ͂"}, {0x1fe7, "Ϋ͂", "Ϋ͂"}, {0x1ff2, "ῺΙ", "Ὼͅ"},
    {0x1ff3, "ΩΙ", "ῼ"}, {0x1ff4, "ΏΙ", "Ώͅ"}, {0x1ff6, "Ω͂", "Ω͂"}, {0x1ff7, "Ω͂Ι", "ῼ͂"},
    {0x1ffc, "ΩΙ", "ῼ"}, {0xfb00, "FF", "Ff"}, {0xfb01, "FI", "Fi"}, {0xfb02, "FL", "Fl"},
    {0xfb03, "FFI", "Ffi"}, {0xfb04, "FFL", "Ffl"}, {0xfb05, "ST", "St"}, {0xfb06, "ST", "St"},
    {0xfb13, "ՄՆ", "Մն"}, {0xfb14, "ՄԵ", "Մե"}, {0xfb15, "ՄԻ", "Մի"}, {0xfb16, "ՎՆ", "Վն"},
    {0xfb17, "ՄԽ", "Մխ"},
    // clang-format on
};

const SpecialCase* special_case(std::uint32_t c) {
  const auto* end = std::end(kSpecialCases);
  const auto* at =
      std::lower_bound(std::begin(kSpecialCases), end, c,
                       [](const SpecialCase& s, std::uint32_t v) { return s.from < v; });
  return at != end && at->from == c ? at : nullptr;
}

utf8proc_category_t category(std::uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Skipped when looking for the letters around a sigma.
bool is_case_ignorable(std::uint32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xb7 || c == 0x2018 || c == 0x2019 ||
             c == 0x2024 || c == 0x2027;
  }
}

bool is_final_sigma(std::string_view text, std::size_t at) {
  std::size_t before = at;
  bool letter_before = false;
  while (before > 0) {
    const CodePoint c = code_point_before(text, before);
    before -= c.size;
    if (is_case_ignorable(c.value)) continue;
    letter_before = is_cased(c.value);
    break;
  }
  if (!letter_before) return false;
  for (std::size_t after = at + code_point_at(text, at).size; after < text.size();) {
    const CodePoint c = code_point_at(text, after);
    after += c.size;
    if (!is_case_ignorable(c.value)) return !is_cased(c.value);
  }
  return true;
}

}  // namespace

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {first, 1};
  const std::size_t size = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  const CodePoint bad{0xdc00u + first, 1};
  if (first < 0xc2 || first > 0xf4 || at + size > text.size()) return bad;
  std::uint32_t value = first & (0x7fu >> size);
  for (std::size_t i = 1; i < size; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return bad;
    value = value << 6 | (byte(at + i) & 0x3fu);
  }
  if ((size == 3 && value < 0x800) || (size == 4 && (value < 0x10000 || value > 0x10ffff)))
    return bad;
  return {value, size};
}

CodePoint code_point_before(std::string_view text, std::size_t end) {
  for (std::size_t back = 2; back <= 4 && back <= end; ++back) {
    if ((static_cast<unsigned char>(text[end - back]) & 0xc0) == 0x80) continue;
    const CodePoint c = code_point_at(text, end - back);
    if (c.size == back) return c;
    break;
  }
  return code_point_at(text.substr(0, end), end - 1);
}

void append_utf8(std::string& out, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xc0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xe0 | c >> 12);
    } else {
      put(0xf0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3f));
    }
    put(0x80 | (c >> 6 & 0x3f));
  }
  put(0x80 | (c & 0x3f));
}

std::size_t count_code_points(std::string_view text) {
  charge_scan(text.size());
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); ++count) at += code_point_at(text, at).size;
  return count;
}

Vector<std::size_t> code_point_offsets(std::string_view text) {
  charge(text.size() / 8);
  Vector<std::size_t> offsets;
  offsets.reserve(text.size() + 1);
  for (std::size_t at = 0; at < text.size(); at += code_point_at(text, at).size)
    offsets.push_back(at);
  offsets.push_back(text.size());
  return offsets;
}

bool is_space(std::uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool is_line_break(std::uint32_t c) {
  return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_printable(std::uint32_t c) {
  if (c < 0x7f) return c >= 0x20;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

bool is_letter(std::uint32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool is_upper(std::uint32_t c) { return utf8proc_isupper(static_cast<utf8proc_int32_t>(c)) != 0; }
bool is_lower(std::uint32_t c) { return utf8proc_islower(static_cast<utf8proc_int32_t>(c)) != 0; }
bool is_cased(std::uint32_t c) {
  return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT;
}
bool is_digit(std::uint32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_numeric(std::uint32_t c) {
  const auto k = category(c);
  return k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO;
}

void append_upper(std::string& out, std::uint32_t c) {
  if (const SpecialCase* s = special_case(c))
    out += s->upper;
  else
    append_utf8(out,
                static_cast<std::uint32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, std::uint32_t c) {
  if (const SpecialCase* s = special_case(c))
    out += s->title;
  else
    append_utf8(out,
                static_cast<std::uint32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

void append_lower(std::string& out, std::string_view text, std::size_t at) {
  const std::uint32_t c = code_point_at(text, at).value;
  if (c == 0x130)
    out += "i\u0307";
  else if (c == 0x3a3)
    out += is_final_sigma(text, at) ? "\u03c2" : "\u03c3";
  else
    append_utf8(out,
                static_cast<std::uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
}

}  // namespace quire::jinja
