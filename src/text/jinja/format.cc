// "%s" % x and "{}".format(x): the plain conversions; anything fancier is refused by name.
#include <cmath>
#include <cstdio>

#include "text/jinja/callable.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_functions.h"

namespace quire::jinja {
namespace {

struct Conversion {
  bool left = false, zero = false;
  Int width = 0;
  int precision = -1;
  char kind = 's';
};

Str convert(const Conversion& c, const Value& v) {
  Str out;
  switch (c.kind) {
    case 's':
      out = to_str(v);
      break;
    case 'r':
      out = Str(repr(v), has_data(v) ? Origin::data : Origin::template_text);
      break;
    case 'd':
    case 'i': {
      if (!is_number(v)) fail("%d format: a number is required, not " + std::string(type_name(v)));
      const double d = v.as<double>() ? std::trunc(*v.as<double>()) : 0;
      if (!(std::fabs(d) < 1e30)) fail("%d format: the number is too large");
      out = Str(int_text(v.as<double>() ? static_cast<Int>(d) : to_int(v)), Origin::template_text);
      break;
    }
    default: {
      if (!is_number(v)) fail("must be a real number, not " + std::string(type_name(v)));
      char buffer[400];
      const int size = std::snprintf(buffer, sizeof buffer, "%.*f",
                                     c.precision < 0 ? 6 : c.precision, to_double(v));
      out = Str(std::string_view(buffer, static_cast<std::size_t>(size)), Origin::template_text);
    }
  }
  const bool number = c.kind != 's' && c.kind != 'r';
  if (number && c.zero && !c.left) {
    const bool sign = out.text()[0] == '-';
    Str padded = out.slice(0, sign);
    padded.append(pad(out.slice(sign, out.size()), c.width - sign, Side::left,
                      Str("0", Origin::template_text)));
    return padded;
  }
  return pad(out, c.width, c.left ? Side::right : Side::left, Str(" ", Origin::template_text));
}

}  // namespace

Value percent_format(const Str& format, const Value& arguments) {
  const std::string_view text = format.text();
  const bool tuple = arguments.seq() && arguments.seq()->kind == SeqKind::tuple;
  const Vector<Value> values = tuple ? arguments.seq()->items : Vector<Value>{arguments};
  Str out;
  std::size_t used = 0, from = 0;
  bool by_name = false;
  const auto put = [&](const Str& s, std::size_t first, std::size_t last) {
    charge_growth(out.size(), last - first);
    out.append(s, first, last);
  };
  for (std::size_t at = text.find('%'); at != std::string::npos; at = text.find('%', from)) {
    put(format, from, at);
    const auto peek = [&]() -> char {
      if (++at >= text.size()) fail("incomplete format");
      return text[at];
    };
    Conversion c;
    char ch = peek();
    const Value* v = nullptr;
    if (ch == '(') {
      const std::size_t end = text.find(')', at);
      if (end == std::string::npos) fail("incomplete format key");
      if (!arguments.dict()) fail("format requires a mapping");
      const std::string key(text.substr(at + 1, end - at - 1));
      v = arguments.dict()->find(key);
      if (!v) fail("the format names '" + key + "', which is not given");
      by_name = true;
      at = end;
      ch = peek();
    }
    for (; ch == '-' || ch == '0'; ch = peek()) (ch == '-' ? c.left : c.zero) = true;
    for (; ch >= '0' && ch <= '9' && c.width < 1 << 20; ch = peek())
      c.width = c.width * 10 + (ch - '0');
    if (ch == '.') {
      c.precision = 0;
      for (ch = peek(); ch >= '0' && ch <= '9' && c.precision < 40; ch = peek())
        c.precision = c.precision * 10 + (ch - '0');
      if (c.precision > 40) fail_unsupported("a precision above 40 in a format");
    }
    from = at + 1;
    if (ch == '%') {
      out.append(format, at, at + 1);
      continue;
    }
    c.kind = ch;
    if (ch != 's' && ch != 'r' && ch != 'd' && ch != 'i' && ch != 'f')
      fail_unsupported("the conversion '%" + std::string(1, ch) + "' in a format");
    if (c.precision >= 0 && ch != 'f')
      fail_unsupported("a precision for '%" + std::string(1, ch) + "'");
    if (!v) {
      if (used >= values.size()) fail("not enough arguments for format string");
      v = &values[used++];
    }
    const Str s = convert(c, *v);
    put(s, 0, s.size());
  }
  put(format, from, format.size());
  if (used < values.size() && !by_name && !(values.size() == 1 && !tuple && arguments.dict()))
    fail("not all arguments converted during string formatting");
  return make_str(std::move(out));
}

Value format_method(Runtime&, const Value& self, Args& args) {
  const Str& format = *self.str();
  const std::string_view text = format.text();
  Str out;
  std::size_t next = 0, from = 0;
  const auto put = [&](const Str& s, std::size_t first, std::size_t last) {
    charge_growth(out.size(), last - first);
    out.append(s, first, last);
  };
  for (std::size_t at = text.find_first_of("{}"); at != std::string::npos;
       at = text.find_first_of("{}", from)) {
    put(format, from, at);
    if (at + 1 < text.size() && text[at + 1] == text[at]) {  // {{ and }}
      put(format, at, at + 1);
      from = at + 2;
      continue;
    }
    const std::size_t end = text.find('}', at);
    if (text[at] == '}' || end == std::string::npos)
      fail("single '" + std::string(text.substr(at, 1)) + "' in format string");
    std::string field(text.substr(at + 1, end - at - 1));
    const bool as_repr = field.ends_with("!r");
    if (as_repr || field.ends_with("!s")) field.resize(field.size() - 2);
    if (field.find_first_of(".[]!:{") != std::string::npos)
      fail_unsupported("the format field '{" + field + "}'");
    const Value* v = nullptr;
    if (field.empty() || field.find_first_not_of("0123456789") == std::string::npos) {
      const std::size_t i = field.empty()      ? next++
                            : field.size() < 6 ? std::stoul(field)
                                               : args.positional.size();
      if (i >= args.positional.size()) fail("the format string needs more arguments");
      v = &args.positional[i];
    } else {
      for (const auto& [name, value] : args.named)
        if (name == field) v = &value;
      if (!v) fail("the format names '" + field + "', which is not given");
    }
    const Str s =
        as_repr ? Str(repr(*v), has_data(*v) ? Origin::data : Origin::template_text) : to_str(*v);
    put(s, 0, s.size());
    from = end + 1;
  }
  put(format, from, format.size());
  return make_str(std::move(out));
}

}  // namespace quire::jinja
