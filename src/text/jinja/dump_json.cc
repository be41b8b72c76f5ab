// The tojson filter: Python's json.dumps, with the options transformers passes on.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "text/jinja/callable.h"
#include "text/jinja/unicode.h"

namespace quire::jinja {
namespace {

class JsonWriter {
 public:
  bool ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator, key_separator;

  std::string out;

  void write(const Value& v, int depth) {
    charge(1);
    charge_growth(out.size(), 1);
    if (const Str* s = v.str()) return text(s->text());
    if (const Dict* d = v.dict()) return dict(*d, depth);
    if (v.is_list_or_tuple()) return list(v.seq()->items, depth);
    if (!scalar(v))
      fail("Object of type " + std::string(type_name(v)) + " is not JSON serializable");
  }

 private:
  bool scalar(const Value& v) {
    if (v.is_none())
      out += "null";
    else if (const auto* b = v.as<bool>())
      out += *b ? "true" : "false";
    else if (const auto* i = v.as<Int>())
      out += int_text(*i);
    else if (const auto* d = v.as<double>())
      out += std::isnan(*d)   ? "NaN"
             : std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity")
                              : float_text(*d);
    else
      return false;
    return true;
  }

  void escape(std::uint32_t unit) {
    static constexpr char kHex[] = "0123456789abcdef";
    out += "\\u";
    for (int shift = 12; shift >= 0; shift -= 4) out += kHex[unit >> shift & 15];
  }

  void text(std::string_view s) {
    charge_growth(out.size(), s.size());
    charge_scan(s.size());
    static constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
    out += '"';
    for (std::size_t at = 0; at < s.size();) {
      const CodePoint c = code_point_at(s, at);
      if (const auto i = c.value < 0x80 ? kFrom.find(static_cast<char>(c.value)) : kFrom.npos;
          i != kFrom.npos) {
        out += {'\\', kTo[i]};
      } else if (c.value < 0x20) {
        escape(c.value);
      } else if (!ascii || c.value < 0x7f || c.value == 0x7f) {
        out += s.substr(at, c.size);
      } else if (c.value < 0x10000) {
        escape(c.value);
      } else {
        escape(0xd800 + ((c.value - 0x10000) >> 10));
        escape(0xdc00 + ((c.value - 0x10000) & 0x3ff));
      }
      at += c.size;
    }
    out += '"';
  }

  void line(int depth) {
    if (!indent) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) {
      charge_growth(out.size(), indent->size());
      out += *indent;
    }
  }

  void list(const Vector<Value>& items, int depth) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i) out += item_separator;
      line(depth + 1);
      write(items[i], depth + 1);
    }
    line(depth);
    out += ']';
  }

  void dict(const Dict& d, int depth) {
    if (d.items.empty()) {
      out += "{}";
      return;
    }
    Vector<const std::pair<Value, Value>*> order;
    for (const auto& item : d.items) order.push_back(&item);
    if (sort_keys)
      std::stable_sort(order.begin(), order.end(),
                       [](auto* a, auto* b) { return less(a->first, b->first); });
    out += '{';
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i) out += item_separator;
      line(depth + 1);
      if (const Str* s = order[i]->first.str()) {
        text(s->text());
      } else {
        out += '"';
        if (!scalar(order[i]->first))
          fail("keys must be str, int, float, bool or None, not " +
               std::string(type_name(order[i]->first)));
        out += '"';
      }
      out += key_separator;
      write(order[i]->second, depth + 1);
    }
    line(depth);
    out += '}';
  }
};

}  // namespace

// JSON that holds any data counts as data as a whole, so that no control token is parsed in it.
Value tojson_filter(Runtime&, const Value& v, Args& args) {
  args.bind({"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonWriter w;
  w.ascii = args.flag(0, false);
  w.sort_keys = args.flag(3, false);
  if (args[1] && !args[1]->is_none()) {
    if (args[1]->str())
      w.indent = args[1]->str()->text();
    else
      w.indent =
          std::string(static_cast<std::size_t>(std::clamp<Int>(to_int(*args[1]), 0, 1000)), ' ');
  }
  w.item_separator = w.indent ? "," : ", ";
  w.key_separator = ": ";
  if (args[2] && !args[2]->is_none()) {
    const Seq* both = args[2]->seq();
    if (!both || both->items.size() != 2 || !both->items[0].str() || !both->items[1].str())
      fail("tojson's separators must be two strings");
    w.item_separator = both->items[0].str()->text();
    w.key_separator = both->items[1].str()->text();
  }
  w.write(v, 0);
  return make_str(w.out, has_data(v) ? Origin::data : Origin::template_text);
}

}  // namespace quire::jinja
