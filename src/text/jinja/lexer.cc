#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja/unicode.h"

namespace quire::jinja {
namespace {

[[noreturn]] void fail_at(int line, const std::string& message) {
  fail(message + " (line " + std::to_string(line) + " of the chat template)");
}

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r')
      out += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n')
      out += '\n';
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit_char(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit_char(c) || c == '_';
}

// The text of a quoted literal, as Python's unicode-escape codec reads it.
std::string unescape(std::string_view raw, int line) {
  std::string out;
  for (std::size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\') {
      out += raw[i];
      continue;
    }
    const char c = raw[++i];  // the lexer's string rule guarantees one more
    static constexpr std::string_view kFrom = "\\'\"abfnrtv", kTo = "\\'\"\a\b\f\n\r\t\v";
    if (const auto simple = kFrom.find(c); simple != kFrom.npos) {
      out += kTo[simple];
    } else if (c == '\n') {
    } else if (c >= '0' && c <= '7') {
      std::uint32_t value = 0;
      std::size_t digits = 0;
      for (; digits < 3 && i < raw.size() && raw[i] >= '0' && raw[i] <= '7'; ++digits, ++i)
        value = value * 8 + static_cast<std::uint32_t>(raw[i] - '0');
      --i;
      append_utf8(out, value);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      std::uint32_t value = 0;
      const char* first = raw.data() + i + 1;
      const char* last = first + std::min(digits, raw.size() - i - 1);
      const auto parsed = std::from_chars(first, last, value, 16);
      if (parsed.ptr != first + digits || *first == '-')
        fail_at(line, std::string("truncated \\") + c + " escape in a string");
      if (value > 0x10ffff) fail_at(line, "illegal Unicode character in a string");
      if (value >= 0xd800 && value < 0xe000)
        fail_unsupported("a surrogate escape in a string (line " + std::to_string(line) +
                         " of the chat template)");
      append_utf8(out, value);
      i += digits;
    } else if (c == 'N') {
      fail_unsupported("a \\N{...} escape in a string (line " + std::to_string(line) +
                       " of the chat template)");
    } else if (static_cast<unsigned char>(c) < 0x80) {
      out += {'\\', c};
    } else {  // Python escapes the character first, so the backslash escapes that escape's
              // backslash
      const CodePoint p = code_point_at(raw, i);
      char hex[16];
      const auto end = std::to_chars(hex, hex + sizeof hex, p.value, 16).ptr;
      const std::size_t width = p.value < 0x100 ? 2 : p.value < 0x10000 ? 4 : 8;
      const auto size = static_cast<std::size_t>(end - hex);
      out += p.value < 0x100 ? "\\x" : p.value < 0x10000 ? "\\u" : "\\U";
      out.append(width - size, '0').append(hex, size);
      i += p.size - 1;
    }
  }
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(normalize_newlines(source)) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) root();
    push(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  bool starts(std::string_view text, std::size_t at) const {
    return std::string_view(source_).substr(at).starts_with(text);
  }
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text)}); }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    line_start_ = to > 0 && source_[to - 1] == '\n';
    at_ = to;
  }

  std::size_t skip_space(std::size_t at) const {
    while (at < source_.size()) {
      const CodePoint c = code_point_at(source_, at);
      if (!is_space(c.value)) break;
      at += c.size;
    }
    return at;
  }

  // Where template text ends, given that a tag with this whitespace sign begins at `end`.
  std::size_t trimmed_end(std::size_t begin, std::size_t end, char sign, bool variable) const {
    if (sign == '-') {
      while (end > begin) {
        const CodePoint c = code_point_before(source_, end);
        if (!is_space(c.value)) break;
        end -= c.size;
      }
      return end;
    }
    if (sign == '+' || variable) return end;
    const std::size_t newline = end > begin ? source_.rfind('\n', end - 1) : source_.npos;
    const bool has_newline = newline != source_.npos && newline >= begin;
    if (!has_newline && !line_start_) return end;
    const std::size_t line = has_newline ? newline + 1 : begin;
    return skip_space(line) >= end ? line : end;
  }

  void push_text(std::size_t end, char sign, bool variable) {
    const std::size_t stop = trimmed_end(at_, end, sign, variable);
    if (stop > at_) push(TokenKind::text, source_.substr(at_, stop - at_));
  }

  char sign_at(std::size_t at) const {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+') ? source_[at] : ' ';
  }

  void root() {
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == source_.npos || tag + 1 >= source_.size()) {
        push(TokenKind::text, source_.substr(at_));
        return advance(source_.size());
      }
      if (source_[tag + 1] == '%' || source_[tag + 1] == '{' || source_[tag + 1] == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = sign_at(tag + 2);
    const std::size_t inside = tag + 2 + (sign != ' ');
    push_text(tag, sign, kind == '{');
    if (kind == '%' && raw(inside)) return;
    advance(inside);
    if (kind == '#') return comment();
    push(kind == '%' ? TokenKind::block_begin : TokenKind::variable_begin, "");
    while (!end_of_tag(kind)) token();
  }

  // The end of a `%}` or `#}` tag at `at`, with what it swallows; npos if there is none.
  std::size_t close(std::size_t at, std::string_view closing) const {
    if (starts(closing, at)) {
      at += 2;
      return at < source_.size() && source_[at] == '\n' ? at + 1 : at;
    }
    if (at + 1 < source_.size() && starts(closing, at + 1)) {
      if (source_[at] == '-') return skip_space(at + 3);
      if (source_[at] == '+') return at + 3;
    }
    return source_.npos;
  }

  void comment() {
    for (std::size_t at = at_; at < source_.size(); ++at) {
      if (const std::size_t end = close(at, "#}"); end != source_.npos) return advance(end);
    }
    fail_at(line_, "a comment has no end");
  }

  // {% raw %}...{% endraw %}, the only tag the lexer itself knows.
  bool raw(std::size_t inside) {
    std::size_t at = skip_space(inside);
    if (!starts("raw", at)) return false;
    at = skip_space(at + 3);
    if (starts("-%}", at))
      at = skip_space(at + 3);
    else if (starts("%}", at))
      at += 2;
    else
      return false;
    advance(at);
    for (std::size_t tag = source_.find("{%", at); tag != source_.npos;
         tag = source_.find("{%", tag + 1)) {
      const char sign = sign_at(tag + 2);
      std::size_t word = skip_space(tag + 2 + (sign != ' '));
      if (!starts("endraw", word)) continue;
      const std::size_t end = close(skip_space(word + 6), "%}");
      if (end == source_.npos) continue;
      push_text(tag, sign, false);
      advance(end);
      return true;
    }
    fail_at(line_, "a raw block has no end");
  }

  bool end_of_tag(char kind) {
    if (at_ >= source_.size()) fail_at(line_, "a tag has no end");
    if (!brackets_.empty()) return false;
    std::size_t end = source_.npos;
    if (kind == '%')
      end = close(at_, "%}");
    else if (starts("}}", at_))
      end = at_ + 2;
    else if (starts("-}}", at_))
      end = skip_space(at_ + 3);
    if (end == source_.npos) return false;
    push(kind == '%' ? TokenKind::block_end : TokenKind::variable_end, "");
    advance(end);
    return true;
  }

  void token() {
    const std::size_t after_space = skip_space(at_);
    if (after_space > at_) return advance(after_space);
    const char c = source_[at_];
    if (is_digit_char(c)) return number();
    if (is_name_char(c)) {
      std::size_t end = at_;
      while (end < source_.size() && is_name_char(source_[end])) ++end;
      push(TokenKind::name, source_.substr(at_, end - at_));
      return advance(end);
    }
    if (c == '"' || c == '\'') return string(c);
    if (static_cast<unsigned char>(c) >= 0x80 && is_letter(code_point_at(source_, at_).value))
      fail_unsupported("a name with letters beyond ASCII (line " + std::to_string(line_) +
                       " of the chat template)");
    op();
  }

  // digits, possibly with single underscores between them
  std::size_t digits(std::size_t at) const {
    while (at < source_.size() && is_digit_char(source_[at])) {
      ++at;
      if (at + 1 < source_.size() && source_[at] == '_' && is_digit_char(source_[at + 1])) ++at;
    }
    return at;
  }

  void number() {
    const auto at = [&](std::size_t i) { return i < source_.size() ? source_[i] : '\0'; };
    std::size_t end = digits(at_);
    bool is_float = false;
    if (at_ == 0 || source_[at_ - 1] != '.') {
      std::size_t to = end;
      if (at(to) == '.' && is_digit_char(at(to + 1))) {
        to = digits(to + 1);
        is_float = true;
      }
      if (at(to) == 'e' || at(to) == 'E') {
        const std::size_t power = to + 1 + (at(to + 1) == '+' || at(to + 1) == '-');
        if (is_digit_char(at(power))) {
          to = digits(power);
          is_float = true;
        }
      }
      if (is_float) end = to;
    }
    int base = 10;
    std::size_t first = at_;
    if (!is_float && at(at_) == '0') {
      const char letter = static_cast<char>(at(at_ + 1) | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      if (base == 10) {
        end = at_ + 1;  // a leading zero stands alone or before more zeros
        while (at(end) == '0' || (at(end) == '_' && at(end + 1) == '0')) ++end;
      } else {
        fail_unsupported("a number in base " + std::to_string(base) + " (line " +
                         std::to_string(line_) + " of the chat template)");
      }
    }
    std::string text;
    std::copy_if(source_.begin() + static_cast<std::ptrdiff_t>(first),
                 source_.begin() + static_cast<std::ptrdiff_t>(end), std::back_inserter(text),
                 [](char c) { return c != '_'; });
    Token token{is_float ? TokenKind::number : TokenKind::integer, line_, text};
    if (is_float) {
      if (std::from_chars(text.data(), text.data() + text.size(), token.number).ec != std::errc())
        token.number = text.find("e-") != text.npos || text.find("E-") != text.npos ? 0 : HUGE_VAL;
    } else {
      for (const char c : text)
        if (__builtin_mul_overflow(token.integer, Int{10}, &token.integer) ||
            __builtin_add_overflow(token.integer, Int{c - '0'}, &token.integer))
          fail_unsupported("an integer beyond 127 bits (line " + std::to_string(line_) +
                           " of the chat template)");
    }
    tokens_.push_back(std::move(token));
    advance(end);
  }

  void string(char quote) {
    std::size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) fail_at(line_, "a string has no end");
    push(TokenKind::string,
         unescape(std::string_view(source_).substr(at_ + 1, end - at_ - 1), line_));
    advance(end + 1);
  }

  void op() {
    static constexpr std::string_view kOps[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* found =
        std::find_if(std::begin(kOps), std::end(kOps), [&](auto o) { return starts(o, at_); });
    if (found == std::end(kOps))
      fail_at(line_, "unexpected character " + repr_text(std::string_view(source_).substr(
                                                   at_, code_point_at(source_, at_).size)));
    const std::string_view text = *found;
    if (text == "(" || text == "[" || text == "{") {
      brackets_ += text == "(" ? ')' : text == "[" ? ']' : '}';
    } else if (text == ")" || text == "]" || text == "}") {
      if (brackets_.empty() || brackets_.back() != text[0])
        fail_at(line_, "unexpected '" + std::string(text) + "'");
      brackets_.pop_back();
    }
    push(TokenKind::op, std::string(text));
    advance(at_ + text.size());
  }

  const std::string source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // whether what was read last ended with a newline
  std::string brackets_;    // the closing ones still expected
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

std::string describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::text:
      return "template text";
    case TokenKind::block_begin:
      return "'{%'";
    case TokenKind::block_end:
      return "'%}'";
    case TokenKind::variable_begin:
      return "'{{'";
    case TokenKind::variable_end:
      return "'}}'";
    case TokenKind::string:
      return "a string";
    case TokenKind::end:
      return "the end of the template";
    default:
      return "'" + token.text + "'";
  }
}

}  // namespace quire::jinja
