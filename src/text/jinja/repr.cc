// str() and repr() of values, as Python writes them.
#include <charconv>
#include <cmath>

#include "text/jinja/callable.h"
#include "text/jinja/unicode.h"
#include "text/jinja/value.h"

namespace quire::jinja {
namespace {

constexpr char kHex[] = "0123456789abcdef";

void append_hex(std::string& out, char letter, std::uint32_t value, int digits) {
  out += {'\\', letter};
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += kHex[value >> shift & 15];
}

void append_repr(std::string& out, const Value& v, int depth) {
  charge_growth(out.size(), 1);
  charge(1);
  if (depth > kValueDepthMax) throw Failure{Code::exhausted, "a value nested too deeply to print"};
  const auto list = [&](const Vector<Value>& items) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i) out += ", ";
      append_repr(out, items[i], depth + 1);
    }
  };
  if (v.is_undefined()) {
    out += "Undefined";
  } else if (const Str* s = v.str()) {
    charge_growth(out.size(), s->size());
    charge_scan(2 * s->size());
    if (s->markup) out += "Markup(";
    out += repr_text(s->text());
    if (s->markup) out += ')';
  } else if (const Seq* q = v.seq()) {
    switch (q->kind) {
      case SeqKind::tuple:
        out += '(';
        list(q->items);
        out += q->items.size() == 1 ? ",)" : ")";
        break;
      case SeqKind::range:
        out += "range(" + int_text(q->first) + ", " + int_text(q->stop);
        if (q->step != 1) out += ", " + int_text(q->step);
        out += ')';
        break;
      case SeqKind::iterator:
        fail_unsupported("printing a generator; add |list");
      default:
        if (q->kind != SeqKind::list) out += std::string(type_name(v)) + '(';
        out += '[';
        list(q->items);
        out += q->kind == SeqKind::list ? "]" : "])";
    }
  } else if (const Dict* d = v.dict()) {
    out += '{';
    for (std::size_t i = 0; i < d->items.size(); ++i) {
      if (i) out += ", ";
      append_repr(out, d->items[i].first, depth + 1);
      out += ": ";
      append_repr(out, d->items[i].second, depth + 1);
    }
    out += '}';
  } else if (const auto* n = v.as<NamespaceRef>()) {
    out += "<Namespace {";
    for (std::size_t i = 0; i < (*n)->items.size(); ++i) {
      if (i) out += ", ";
      out += repr_text((*n)->items[i].first) + ": ";
      append_repr(out, (*n)->items[i].second, depth + 1);
    }
    out += "}>";
  } else if (const auto* c = v.as<CallableRef>()) {
    if (!(*c)->macro) fail_unsupported("printing the function '" + std::string((*c)->name) + "'");
    out += "<Macro " + repr_text((*c)->name) + ">";
  } else if (v.as<LoopRef>()) {
    fail_unsupported("printing loop");
  } else {
    out += to_str(v).text();
  }
}

}  // namespace

std::string int_text(Int v) {
  if (v == 0) return "0";
  std::string digits;
  for (Int rest = v; rest != 0; rest /= 10)
    digits += static_cast<char>('0' + (rest < 0 ? -(rest % 10) : rest % 10));
  if (v < 0) digits += '-';
  return {digits.rbegin(), digits.rend()};
}

std::string float_text(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (shortest.front() == '-') {
    out = "-";
    shortest.remove_prefix(1);
  }
  const std::size_t e = shortest.find('e');
  std::string digits(shortest.substr(0, e));
  if (digits.size() > 1) digits.erase(1, 1);  // the point
  int exponent = 0;
  const std::string_view power = shortest.substr(e + 1);
  std::from_chars(power.data() + (power.front() == '+'), power.data() + power.size(), exponent);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += '.' + digits.substr(1);
    const int magnitude = std::abs(exponent);
    return out + (exponent < 0 ? "e-" : "e+") + (magnitude < 10 ? "0" : "") +
           std::to_string(magnitude);
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1)
    return out + digits + std::string(static_cast<std::size_t>(exponent + 1 - count), '0') + ".0";
  const auto point = static_cast<std::size_t>(exponent + 1);
  return out + digits.substr(0, point) + '.' + digits.substr(point);
}

std::string repr_text(std::string_view text) {
  const bool double_quoted = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char quote = double_quoted ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (c.value == static_cast<unsigned char>(quote) || c.value == '\\')
      out += {'\\', static_cast<char>(c.value)};
    else if (c.value == '\n')
      out += "\\n";
    else if (c.value == '\r')
      out += "\\r";
    else if (c.value == '\t')
      out += "\\t";
    else if (is_printable(c.value))
      out += text.substr(at, c.size);
    else if (c.value < 0x100)
      append_hex(out, 'x', c.value, 2);
    else if (c.value < 0x10000)
      append_hex(out, 'u', c.value, 4);
    else
      append_hex(out, 'U', c.value, 8);
    at += c.size;
  }
  return out + quote;
}

std::string repr(const Value& v) {
  std::string out;
  append_repr(out, v, 0);
  return out;
}

Str to_str(const Value& v) {
  if (const Str* s = v.str()) {
    charge_copy(s->size());
    return *s;
  }
  const auto made = [](std::string_view text) { return Str(text, Origin::template_text); };
  if (v.is_undefined()) return {};
  if (v.is_none()) return made("None");
  if (const auto* b = v.as<bool>()) return made(*b ? "True" : "False");
  if (const auto* i = v.as<Int>()) return made(int_text(*i));
  if (const auto* d = v.as<double>()) return made(float_text(*d));
  return Str(repr(v), has_data(v) ? Origin::data : Origin::template_text);
}

}  // namespace quire::jinja
