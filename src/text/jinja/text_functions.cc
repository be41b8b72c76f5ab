#include "text/jinja/text_functions.h"

#include <algorithm>
#include <cstring>

#include "text/jinja/unicode.h"

namespace quire::jinja {

std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from) {
  if (from > text.size()) return text.npos;
  const void* at = memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  const std::size_t found =
      at == nullptr ? text.npos
                    : static_cast<std::size_t>(static_cast<const char*>(at) - text.data());
  charge_scan((at == nullptr ? text.size() : found) - from + needle.size());
  return found;
}

std::size_t find_text_back(std::string_view text, std::string_view needle) {
  const std::string backwards(text.rbegin(), text.rend()), wanted(needle.rbegin(), needle.rend());
  charge_scan(text.size());
  const std::size_t at = find_text(backwards, wanted);
  return at == text.npos ? text.npos : text.size() - at - needle.size();
}

Str strip(const Str& s, Side side, const Str* characters) {
  Vector<std::uint32_t> set;
  if (characters) {
    for (std::size_t at = 0; at < characters->size();) {
      const CodePoint c = code_point_at(characters->text(), at);
      set.push_back(c.value);
      at += c.size;
    }
    charge(set.size());
  }
  const auto strippable = [&](std::uint32_t c) {
    charge(set.size() / 16);
    return characters ? std::find(set.begin(), set.end(), c) != set.end() : is_space(c);
  };
  std::size_t from = 0, to = s.size();
  while (side != Side::right && from < to) {
    const CodePoint c = code_point_at(s.text(), from);
    if (!strippable(c.value)) break;
    from += c.size;
  }
  charge_scan(from);
  while (side != Side::left && to > from) {
    const CodePoint c = code_point_before(s.text(), to);
    if (!strippable(c.value)) break;
    to -= c.size;
  }
  charge_scan(s.size() - to);
  return s.slice(from, to);
}

Str change_case(const Str& s, Case to) {
  charge(s.size() / 8);
  Str out;
  bool in_word = false;  // for title: whether the last character was a letter
  for (std::size_t at = 0; at < s.size();) {
    const CodePoint c = code_point_at(s.text(), at);
    std::string mapped;
    const bool raw_byte = c.size == 1 && c.value >= 0x80;
    const bool first = to == Case::capitalize ? at == 0 : !in_word;
    if (raw_byte)
      mapped = s.text()[at];
    else if (to == Case::upper || (to == Case::swap && is_lower(c.value)))
      append_upper(mapped, c.value);
    else if (to == Case::lower || to == Case::swap)
      append_lower(mapped, s.text(), at);
    else if (first)
      append_title(mapped, c.value);
    else
      append_lower(mapped, s.text(), at);
    in_word = is_cased(c.value);
    out.append(mapped, s.origin_at(at));
    at += c.size;
  }
  return out;
}

Str replace(const Str& s, const Str& from, const Str& to, Int count) {
  charge(s.size() / 16);
  Str out;
  std::size_t at = 0;
  const auto put = [&](const Str& part, std::size_t first, std::size_t last) {
    charge_growth(out.size(), last - first);
    out.append(part, first, last);
  };
  if (from.empty()) {  // before every character, and at the end
    for (; count != 0; --count) {
      charge(1);
      put(to, 0, to.size());
      if (at == s.size()) return out;
      const std::size_t size = code_point_at(s.text(), at).size;
      put(s, at, at + size);
      at += size;
    }
  }
  while (count != 0 && !from.empty()) {
    const std::size_t found = find_text(s.text(), from.text(), at);
    if (found == std::string::npos) break;
    charge(1);
    put(s, at, found);
    put(to, 0, to.size());
    at = found + from.size();
    --count;
  }
  put(s, at, s.size());
  return out;
}

Str escape_html(const Str& s) {
  charge(s.size() / 16);
  Str out;
  std::size_t from = 0;
  for (std::size_t at = 0; at < s.size(); ++at) {
    std::string_view entity;
    switch (s.text()[at]) {
      case '&':
        entity = "&amp;";
        break;
      case '<':
        entity = "&lt;";
        break;
      case '>':
        entity = "&gt;";
        break;
      case '"':
        entity = "&#34;";
        break;
      case '\'':
        entity = "&#39;";
        break;
      default:
        continue;
    }
    out.append(s, from, at);
    out.append(entity, s.origin_at(at));
    from = at + 1;
  }
  out.append(s, from, s.size());
  return out;
}

Str pad(const Str& s, Int width, Side side, const Str& fill) {
  const auto length = static_cast<Int>(count_code_points(s.text()));
  if (width <= length) return s;
  const Int missing = width - length;
  // As Python centers: the odd one goes left when the width is odd.
  const Int left = side == Side::left    ? missing
                   : side == Side::right ? 0
                                         : missing / 2 + (missing & width & 1);
  if (missing > 1 << 30) charge_bytes(static_cast<std::size_t>(1) << 62);
  charge_bytes(s.size() + static_cast<std::size_t>(missing) * fill.size());
  Str out;
  for (Int i = 0; i < left; ++i) out.append(fill);
  out.append(s);
  for (Int i = left; i < missing; ++i) out.append(fill);
  return out;
}

Str join(const Vector<Str>& parts, const Str& separator) {
  Str out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    charge_growth(out.size(), separator.size() + parts[i].size());
    if (i) out.append(separator);
    out.append(parts[i]);
  }
  return out;
}

Vector<Str> split(const Str& s, const Str& separator, Int count) {
  charge(s.size() / 16);
  if (separator.empty()) fail("empty separator");
  Vector<Str> out;
  std::size_t at = 0;
  for (; count != 0; --count) {
    const std::size_t found = find_text(s.text(), separator.text(), at);
    if (found == std::string::npos) break;
    out.push_back(s.slice(at, found));
    at = found + separator.size();
  }
  out.push_back(s.slice(at, s.size()));
  return out;
}

Vector<Str> split_back(const Str& s, const Str& separator, Int count) {
  if (separator.empty()) fail("empty separator");
  // Of overlapping separators the last ones count, so the text is read backwards, once.
  const std::string text(s.text().rbegin(), s.text().rend()),
      wanted(separator.text().rbegin(), separator.text().rend());
  charge_scan(text.size());
  Vector<Str> out;
  std::size_t at = 0;
  for (; count != 0; --count) {
    const std::size_t found = find_text(text, wanted, at);
    if (found == std::string::npos) break;
    out.push_back(s.slice(s.size() - found, s.size() - at));
    at = found + wanted.size();
  }
  out.push_back(s.slice(0, s.size() - at));
  std::reverse(out.begin(), out.end());
  return out;
}

Vector<Str> split_space(const Str& s, Int count) {
  charge(s.size() / 16);
  Vector<Str> out;
  std::size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < s.size()) {
      const CodePoint c = code_point_at(s.text(), at);
      if (is_space(c.value) != space) break;
      at += c.size;
    }
  };
  for (skip(true); at < s.size(); skip(true)) {
    if (count-- == 0) {
      out.push_back(s.slice(at, s.size()));
      break;
    }
    const std::size_t from = at;
    skip(false);
    out.push_back(s.slice(from, at));
  }
  return out;
}

Vector<Str> split_space_back(const Str& s, Int count) {
  charge(s.size() / 16);
  Vector<Str> out;
  std::size_t end = s.size();
  const auto skip = [&](bool space) {
    while (end > 0) {
      const CodePoint c = code_point_before(s.text(), end);
      if (is_space(c.value) != space) break;
      end -= c.size;
    }
  };
  for (skip(true); end > 0; skip(true)) {
    if (count-- == 0) {
      out.push_back(s.slice(0, end));
      break;
    }
    const std::size_t to = end;
    skip(false);
    out.push_back(s.slice(end, to));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

Vector<Str> split_lines(const Str& s, bool keep_ends) {
  charge(s.size() / 16);
  Vector<Str> out;
  std::size_t from = 0;
  for (std::size_t at = 0; at < s.size();) {
    const CodePoint c = code_point_at(s.text(), at);
    std::size_t next = at + c.size;
    if (is_line_break(c.value)) {
      if (c.value == '\r' && next < s.size() && s.text()[next] == '\n') ++next;
      out.push_back(s.slice(from, keep_ends ? next : at));
      from = next;
    }
    at = next;
  }
  if (from < s.size()) out.push_back(s.slice(from, s.size()));
  return out;
}

}  // namespace quire::jinja
