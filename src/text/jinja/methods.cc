// Methods of strings, dicts and lists. Those that would change a list or dict do not exist here, as
// in the sandbox.
#include <algorithm>

#include "text/jinja/callable.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace quire::jinja {

Value format_method(Runtime& rt, const Value& self, Args& args);  // format.cc

namespace {

Value list_of(Vector<Str> parts) {
  Vector<Value> items;
  for (Str& p : parts) items.push_back(make_str(std::move(p)));
  return make_list(std::move(items));
}

const Str* optional_str(const Args& args, std::size_t i) {
  return args[i] && !args[i]->is_none() ? &args.str(i) : nullptr;
}

template <Side side>
Value strip_method(Runtime&, const Value& self, Args& args) {
  args.bind({"chars"}, 0);
  return make_str(strip(*self.str(), side, optional_str(args, 0)));
}

template <Case to>
Value case_method(Runtime&, const Value& self, Args& args) {
  args.bind({}, 0);
  return make_str(change_case(*self.str(), to));
}

Value split_method(Runtime&, const Value& self, Args& args) {
  args.bind({"sep", "maxsplit"}, 0);
  const Str* sep = optional_str(args, 0);
  const Int count = args.integer(1, -1);
  return list_of(sep ? split(*self.str(), *sep, count) : split_space(*self.str(), count));
}

Value rsplit_method(Runtime&, const Value& self, Args& args) {
  args.bind({"sep", "maxsplit"}, 0);
  const Str* sep = optional_str(args, 0);
  const Int count = args.integer(1, -1);
  return list_of(sep ? split_back(*self.str(), *sep, count) : split_space_back(*self.str(), count));
}

Value splitlines_method(Runtime&, const Value& self, Args& args) {
  args.bind({"keepends"}, 0);
  return list_of(split_lines(*self.str(), args.flag(0, false)));
}

// The part of a string that (start, stop) selects, as byte offsets.
std::pair<std::size_t, std::size_t> window(const Str& s, const Args& args, std::size_t first) {
  if (!args[first] && !args[first + 1]) return {0, s.size()};
  const Vector<std::size_t> offsets = code_point_offsets(s.text());
  const auto size = static_cast<Int>(offsets.size() - 1);
  const auto bound = [&](std::size_t i, Int fallback) {
    Int v = args.integer(i, fallback);
    if (v < 0) v = std::max<Int>(0, v + size);
    return v;
  };
  const Int from = bound(first, 0), to = std::min(size, bound(first + 1, size));
  if (from > to) return {s.size() + 1, s.size()};  // selects nothing, not even the empty string
  return {offsets[static_cast<std::size_t>(from)], offsets[static_cast<std::size_t>(to)]};
}

template <bool at_end>
Value affix_method(Runtime&, const Value& self, Args& args) {
  args.bind({at_end ? "suffix" : "prefix", "start", "end"}, 1);
  const auto [from, to] = window(*self.str(), args, 1);
  if (from > to) return Value(false);
  const std::string_view text = std::string_view(self.str()->text()).substr(from, to - from);
  const auto matches = [&](const Value& v) {
    if (!v.str()) fail("'" + std::string(args.who) + "' needs a string or a tuple of strings");
    charge(1 + std::min(text.size(), v.str()->size()) / 64);
    return at_end ? text.ends_with(v.str()->text()) : text.starts_with(v.str()->text());
  };
  if (const Seq* q = args[0]->seq(); q && q->kind == SeqKind::tuple)
    return Value(std::any_of(q->items.begin(), q->items.end(), matches));
  return Value(matches(*args[0]));
}

// find, rfind, index and rindex.
template <bool backwards, bool must>
Value find_method_of_str(Runtime&, const Value& self, Args& args) {
  args.bind({"sub", "start", "end"}, 1);
  const std::string_view needle = args.str(0).text();
  const Str& s = *self.str();
  const auto [from, to] = window(s, args, 1);
  std::size_t found = std::string::npos;
  if (from <= to) {
    const std::string_view text = std::string_view(s.text()).substr(from, to - from);
    found = backwards ? find_text_back(text, needle) : find_text(text, needle);
  }
  if (found == std::string::npos) {
    if (must) fail("substring not found");
    return Value(Int{-1});
  }
  return Value(
      static_cast<Int>(count_code_points(std::string_view(s.text()).substr(0, from + found))));
}

Value count_method(Runtime&, const Value& self, Args& args) {
  args.bind({"sub", "start", "end"}, 1);
  const Str& s = *self.str();
  const std::string_view needle = args.str(0).text();
  const auto [from, to] = window(s, args, 1);
  if (from > to) return Value(Int{0});
  const std::string_view text = std::string_view(s.text()).substr(from, to - from);
  if (needle.empty()) return Value(static_cast<Int>(count_code_points(text) + 1));
  Int count = 0;
  for (std::size_t at = find_text(text, needle); at != text.npos;
       at = find_text(text, needle, at + needle.size()), charge(1))
    ++count;
  return Value(count);
}

Value replace_method(Runtime&, const Value& self, Args& args) {
  args.bind({"old", "new", "count"}, 2);
  return make_str(replace(*self.str(), args.str(0), args.str(1), args.integer(2, -1)));
}

Value join_method(Runtime& rt, const Value& self, Args& args) {
  args.bind({"iterable"}, 1);
  if (args[0]->is_undefined()) return make_str("");
  Vector<Str> parts;
  for (const Value& v : rt.walk(*args[0])) {
    if (!v.str()) fail("join: a sequence item is " + std::string(type_name(v)) + ", not a string");
    parts.push_back(*v.str());
  }
  return make_str(join(parts, *self.str()));
}

template <bool suffix>
Value remove_affix_method(Runtime&, const Value& self, Args& args) {
  args.bind({suffix ? "suffix" : "prefix"}, 1);
  const Str& s = *self.str();
  const std::string_view affix = args.str(0).text();
  charge_copy(std::min(s.size(), affix.size()));
  if (suffix)
    return !affix.empty() && s.text().ends_with(affix)
               ? make_str(s.slice(0, s.size() - affix.size()))
               : self;
  return s.text().starts_with(affix) ? make_str(s.slice(affix.size(), s.size())) : self;
}

template <bool backwards>
Value partition_method(Runtime&, const Value& self, Args& args) {
  args.bind({"sep"}, 1);
  const Str &s = *self.str(), &sep = args.str(0);
  if (sep.empty()) fail("empty separator");
  const std::size_t at =
      backwards ? find_text_back(s.text(), sep.text()) : find_text(s.text(), sep.text());
  const Value none = make_str("");
  if (at == std::string::npos)
    return make_seq(SeqKind::tuple,
                    backwards ? Vector<Value>{none, none, self} : Vector<Value>{self, none, none});
  return make_seq(SeqKind::tuple, {make_str(s.slice(0, at)), make_str(sep),
                                   make_str(s.slice(at + sep.size(), s.size()))});
}

template <Side side>
Value pad_method(Runtime&, const Value& self, Args& args) {
  args.bind({"width", "fillchar"}, 1);
  const Str fill = args[1] ? args.str(1) : Str(" ", Origin::template_text);
  if (count_code_points(fill.text()) != 1)
    fail("the fill character must be exactly one character long");
  return make_str(pad(*self.str(), to_int(*args[0]), side, fill));
}

Value zfill_method(Runtime&, const Value& self, Args& args) {
  args.bind({"width"}, 1);
  const Str& s = *self.str();
  const bool sign = !s.empty() && (s.text()[0] == '-' || s.text()[0] == '+');
  Str out = s.slice(0, sign);
  out.append(pad(s.slice(sign, s.size()), to_int(*args[0]) - sign, Side::left,
                 Str("0", Origin::template_text)));
  return make_str(std::move(out));
}

// isalpha and its kin: every character has the property, and there is one.
template <bool (*property)(std::uint32_t)>
Value all_method(Runtime&, const Value& self, Args& args) {
  args.bind({}, 0);
  const std::string_view text = self.str()->text();
  charge_scan(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    if (!property(c.value)) return Value(false);
    at += c.size;
  }
  return Value(!text.empty());
}

bool is_alphanumeric(std::uint32_t c) { return is_letter(c) || is_numeric(c); }

// isupper and islower: some cased character, and none of the other case.
template <bool upper>
Value is_case_method(Runtime&, const Value& self, Args& args) {
  args.bind({}, 0);
  const std::string_view text = self.str()->text();
  charge_scan(text.size());
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint c = code_point_at(text, at);
    at += c.size;
    if (!is_cased(c.value)) continue;
    if (upper ? !is_upper(c.value) : !is_lower(c.value)) return Value(false);
    any = true;
  }
  return Value(any);
}

constexpr Named kStrMethods[] = {
    {"strip", strip_method<Side::both>},
    {"lstrip", strip_method<Side::left>},
    {"rstrip", strip_method<Side::right>},
    {"split", split_method},
    {"rsplit", rsplit_method},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"endswith", affix_method<true>},
    {"upper", case_method<Case::upper>},
    {"lower", case_method<Case::lower>},
    {"title", case_method<Case::title>},
    {"capitalize", case_method<Case::capitalize>},
    {"swapcase", case_method<Case::swap>},
    {"replace", replace_method},
    {"find", find_method_of_str<false, false>},
    {"rfind", find_method_of_str<true, false>},
    {"index", find_method_of_str<false, true>},
    {"rindex", find_method_of_str<true, true>},
    {"count", count_method},
    {"join", join_method},
    {"format", format_method},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"partition", partition_method<false>},
    {"rpartition", partition_method<true>},
    {"ljust", pad_method<Side::right>},
    {"rjust", pad_method<Side::left>},
    {"center", pad_method<Side::both>},
    {"zfill", zfill_method},
    {"isalpha", all_method<is_letter>},
    {"isdigit", all_method<is_digit>},
    {"isdecimal", all_method<is_digit>},
    {"isnumeric", all_method<is_numeric>},
    {"isalnum", all_method<is_alphanumeric>},
    {"isspace", all_method<is_space>},
    {"isupper", is_case_method<true>},
    {"islower", is_case_method<false>},
};

template <SeqKind kind>
Value view_method(Runtime&, const Value& self, Args& args) {
  args.bind({}, 0);
  Vector<Value> out;
  for (const auto& [key, value] : self.dict()->items)
    out.push_back(kind == SeqKind::keys     ? key
                  : kind == SeqKind::values ? value
                                            : make_seq(SeqKind::tuple, {key, value}));
  return make_seq(kind, std::move(out));
}

Value get_method(Runtime&, const Value& self, Args& args) {
  if (!args.named.empty()) fail("dict.get takes no named arguments");
  args.bind({"key", "default"}, 1);
  if (args[0]->dict() || (args[0]->seq() && args[0]->seq()->kind == SeqKind::list))
    fail("unhashable type: '" + std::string(type_name(*args[0])) + "'");
  const Value* found = self.dict()->find(*args[0]);
  return found ? *found : args[1] ? *args[1] : Value();
}

Value copy_method(Runtime&, const Value& self, Args& args) {
  args.bind({}, 0);
  return self;
}

constexpr Named kDictMethods[] = {{"items", view_method<SeqKind::items>},
                                  {"keys", view_method<SeqKind::keys>},
                                  {"values", view_method<SeqKind::values>},
                                  {"get", get_method},
                                  {"copy", copy_method}};

Value list_count_method(Runtime&, const Value& self, Args& args) {
  args.bind({"value"}, 1);
  const auto& items = self.seq()->items;
  return Value(Int{std::count_if(items.begin(), items.end(),
                                 [&](const Value& v) { return equals(v, *args[0]); })});
}

Value list_index_method(Runtime&, const Value& self, Args& args) {
  args.bind({"value"}, 1);
  const auto& items = self.seq()->items;
  const auto at =
      std::find_if(items.begin(), items.end(), [&](const Value& v) { return equals(v, *args[0]); });
  if (at == items.end()) fail(repr(*args[0]) + " is not in the list");
  return Value(Int{at - items.begin()});
}

constexpr Named kListMethods[] = {
    {"count", list_count_method}, {"index", list_index_method}, {"copy", copy_method}};

constexpr std::string_view kOtherStrMethods[] = {
    "casefold",     "encode",      "expandtabs", "format_map", "isascii",
    "isidentifier", "isprintable", "istitle",    "maketrans",  "translate"};

}  // namespace

Function find_method(const Value& self, std::string_view name) {
  const Function* f = nullptr;
  if (self.str()) {
    f = find_named(kStrMethods, name);
    if (!f && std::find(std::begin(kOtherStrMethods), std::end(kOtherStrMethods), name) !=
                  std::end(kOtherStrMethods))
      fail_unsupported("the string method '" + std::string(name) + "'");
  } else if (self.dict()) {
    f = find_named(kDictMethods, name);
  } else if (self.is_list_or_tuple()) {
    f = find_named(kListMethods, name);
  }
  return f ? *f : nullptr;
}

bool is_forbidden_method(const Value& self, std::string_view name) {
  static constexpr std::string_view kDict[] = {"clear",      "pop",    "popitem",
                                               "setdefault", "update", "fromkeys"};
  return self.dict() && std::find(std::begin(kDict), std::end(kDict), name) != std::end(kDict);
}

}  // namespace quire::jinja
