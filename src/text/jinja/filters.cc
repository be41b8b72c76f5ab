// Filters on single values: text, numbers, defaults. Those on sequences are in sequence_filters.cc.
#include "text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/runtime.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace quire::jinja {
namespace {

Value trim(Runtime&, const Value& v, Args& args) {
  args.bind({"chars"}, 0);
  return make_str(
      strip(to_str(v), Side::both, args[0] && !args[0]->is_none() ? &args.str(0) : nullptr));
}

template <Case to>
Value case_filter(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  return make_str(change_case(to_str(v), to));
}

// Unlike str.title, words begin after white space, dashes and opening brackets only.
Value title(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  const Str s = to_str(v);
  charge_scan(2 * s.size());
  Str out;
  const auto separates = [](std::uint32_t c) {
    return is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (std::size_t at = 0; at < s.size();) {
    std::size_t end = at;
    const bool separator = separates(code_point_at(s.text(), at).value);
    while (end < s.size() && separates(code_point_at(s.text(), end).value) == separator)
      end += code_point_at(s.text(), end).size;
    const std::size_t first = at + code_point_at(s.text(), at).size;
    out.append(change_case(s.slice(at, first), Case::upper));
    out.append(change_case(s.slice(first, end), Case::lower));
    at = end;
  }
  return make_str(std::move(out));
}

Value replace_filter(Runtime&, const Value& v, Args& args) {
  args.bind({"old", "new", "count"}, 2);
  return make_str(replace(to_str(v), to_str(*args[0]), to_str(*args[1]), args.integer(2, -1)));
}

Value string(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  return v.str() ? v : make_str(to_str(v));
}

Value default_(Runtime&, const Value& v, Args& args) {
  args.bind({"default_value", "boolean"}, 0);
  if (v.is_undefined() || (args.flag(1, false) && !truthy(v)))
    return args[0] ? *args[0] : make_str("");
  return v;
}

Value safe(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  Str s = to_str(v);
  s.markup = true;
  return make_str(std::move(s));
}

Value escape(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  Str s = to_str(v);
  if (!s.markup) s = escape_html(s);
  s.markup = true;
  return make_str(std::move(s));
}

Value indent(Runtime&, const Value& v, Args& args) {
  args.bind({"width", "first", "blank"}, 0);
  Str by = args[0] && args[0]->str() ? *args[0]->str() : Str();
  if (!args[0] || !args[0]->str())
    by = pad(Str(), args.integer(0, 4), Side::left, Str(" ", Origin::template_text));
  if (const auto* u = v.as<Undefined>()) fail_undefined(*u);
  if (!v.str()) fail("indent needs a string, not " + std::string(type_name(v)));
  charge_copy(v.str()->size());
  Str text = *v.str();
  text.append("\n", Origin::template_text);
  Str out;
  bool first_line = true;
  for (const Str& line : split_lines(text, false)) {
    charge_growth(out.size(), by.size() + line.size() + 1);
    if (!first_line) out.append("\n", Origin::template_text);
    const bool wanted = first_line ? args.flag(1, false) : args.flag(2, false) || !line.empty();
    if (wanted) out.append(by);
    out.append(line);
    first_line = false;
  }
  return make_str(std::move(out));
}

Value wordcount(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  const Str s = to_str(v);
  charge_scan(2 * s.size());
  Int count = 0;
  bool in_word = false;
  for (std::size_t at = 0; at < s.size();) {
    const CodePoint c = code_point_at(s.text(), at);
    const bool word = is_letter(c.value) || is_numeric(c.value) || c.value == '_';
    count += word && !in_word;
    in_word = word;
    at += c.size;
  }
  return Value(count);
}

// A number written the way Python's int() and float() read it; false if it is not one.
bool parse_float(const Str& s, double& out) {
  charge_scan(s.size());
  std::string text;
  const std::string stripped(strip(s, Side::both, nullptr).text());
  for (std::size_t i = 0; i < stripped.size(); ++i) {
    const bool between = i > 0 && i + 1 < stripped.size() &&
                         std::isdigit(static_cast<unsigned char>(stripped[i - 1])) &&
                         std::isdigit(static_cast<unsigned char>(stripped[i + 1]));
    if (stripped[i] != '_')
      text += stripped[i];
    else if (!between)
      return false;
  }
  if (text.find_first_of("xXpP(") != std::string::npos || text.empty()) return false;
  char* end = nullptr;
  out = std::strtod(text.c_str(), &end);
  return end == text.c_str() + text.size() && !is_space(static_cast<unsigned char>(text[0]));
}

bool parse_int(const Str& s, int base, Int& out) {
  charge_scan(s.size());
  std::string text(strip(s, Side::both, nullptr).text());
  bool negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negative = text[0] == '-';
    text.erase(0, 1);
  }
  const char letter = text.size() > 1 && text[0] == '0' ? static_cast<char>(text[1] | 0x20) : ' ';
  if ((base == 16 && letter == 'x') || (base == 8 && letter == 'o') ||
      (base == 2 && letter == 'b')) {
    text.erase(0, 2);
    if (!text.empty() && text[0] == '_') text.erase(0, 1);
  }
  if (text.empty()) return false;
  out = 0;
  bool digit_before = false;
  for (const char c : text) {
    if (c == '_' && digit_before) {
      digit_before = false;
      continue;
    }
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 10
                      : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                             : 99;
    if (digit >= base) return false;
    if (__builtin_mul_overflow(out, Int{base}, &out) ||
        __builtin_add_overflow(out, Int{digit}, &out))
      fail_unsupported("integers beyond 127 bits");
    digit_before = true;
  }
  if (negative) out = -out;
  return digit_before;
}

Value int_(Runtime&, const Value& v, Args& args) {
  args.bind({"default", "base"}, 0);
  const Value fallback = args[0] ? *args[0] : Value(Int{0});
  double d = 0;
  if (const Str* s = v.str()) {
    Int out = 0;
    const Int base = args.integer(1, 10);
    if (base < 2 || base > 36) fail_unsupported("int() with base " + int_text(base));
    if (parse_int(*s, static_cast<int>(base), out)) return Value(out);
    if (!parse_float(*s, d)) return fallback;
  } else if (v.as<double>()) {
    d = *v.as<double>();
    if (std::isinf(d)) fail("cannot convert float infinity to integer");
  } else if (is_number(v)) {
    return Value(to_int(v));
  } else if (const auto* u = v.as<Undefined>()) {
    fail_undefined(*u);
  } else {
    return fallback;
  }
  if (std::isnan(d) || std::isinf(d)) return fallback;
  if (std::fabs(d) > 1e38) fail_unsupported("integers beyond 127 bits");
  return Value(static_cast<Int>(d));
}

Value float_(Runtime&, const Value& v, Args& args) {
  args.bind({"default"}, 0);
  double d = 0;
  if (is_number(v)) return Value(to_double(v));
  if (const auto* u = v.as<Undefined>()) fail_undefined(*u);
  if (v.str() && parse_float(*v.str(), d)) return Value(d);
  return args[0] ? *args[0] : Value(0.0);
}

Value abs_(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  if (const auto* d = v.as<double>()) return Value(std::fabs(*d));
  const Int i = to_int(v);
  return i < 0 ? negate(Value(i)) : Value(i);
}

Value round_(Runtime&, const Value& v, Args& args) {
  args.bind({"precision", "method"}, 0);
  const Int precision = args.integer(0, 0);
  const std::string_view method = args[1] ? args.str(1).text() : "common";
  if (method != "common" && method != "ceil" && method != "floor")
    fail("method must be common, ceil or floor");
  if (precision < 0 || precision > 20)
    fail_unsupported("rounding to " + int_text(precision) + " digits");
  if (!is_number(v)) to_int(v);
  if (method == "common") {
    if (!v.as<double>()) return Value(to_int(v));
    char buffer[400];
    std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), to_double(v));
    return Value(std::strtod(buffer, nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = to_double(v) * scale;
  // Python's ceil and floor give integers, which have no negative zero.
  return Value(((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) + 0.0) / scale);
}

Value format(Runtime&, const Value& v, Args& args) {
  if (!args.positional.empty() && !args.named.empty())
    fail("can't handle positional and keyword arguments at the same time");
  if (args.named.empty())
    return percent_format(to_str(v), make_seq(SeqKind::tuple, args.positional));
  Dict names;
  for (const auto& [name, value] : args.named) names.set(make_str(name), value);
  return percent_format(to_str(v), make_dict(std::move(names)));
}

constexpr Named kFilters[] = {
    {"trim", trim},
    {"upper", case_filter<Case::upper>},
    {"lower", case_filter<Case::lower>},
    {"capitalize", case_filter<Case::capitalize>},
    {"title", title},
    {"replace", replace_filter},
    {"string", string},
    {"default", default_},
    {"d", default_},
    {"safe", safe},
    {"escape", escape},
    {"e", escape},
    {"indent", indent},
    {"wordcount", wordcount},
    {"int", int_},
    {"float", float_},
    {"abs", abs_},
    {"round", round_},
    {"format", format},
    {"tojson", tojson_filter},
};

}  // namespace

const Function* find_filter(std::string_view name) {
  const Function* f = find_named(kFilters, name);
  return f ? f : find_sequence_filter(name);
}

}  // namespace quire::jinja
