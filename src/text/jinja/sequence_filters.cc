// Filters on lists, dicts and iterators. Where jinja2 returns a generator, so do we: it can be
// walked once.
#include <algorithm>

#include "text/jinja/filters.h"
#include "text/jinja/runtime.h"
#include "text/jinja/text_functions.h"
#include "text/jinja/unicode.h"

namespace quire::jinja {
namespace {

Value length(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  if (v.is_undefined()) return Value(Int{0});
  if (const Str* s = v.str()) {
    return Value(static_cast<Int>(count_code_points(s->text())));
  }
  if (const Seq* s = v.seq(); s && s->kind != SeqKind::iterator)
    return Value(static_cast<Int>(s->items.size()));
  if (const Dict* d = v.dict()) return Value(static_cast<Int>(d->items.size()));
  fail("object of type '" + std::string(type_name(v)) + "' has no len()");
}

Value first(Runtime& rt, const Value& v, Args& args) {
  args.bind({}, 0);
  const Vector<Value> items = rt.walk(v);
  return items.empty() ? make_undefined("No first item, sequence was empty.") : items.front();
}

Value last(Runtime& rt, const Value& v, Args& args) {
  args.bind({}, 0);
  if (v.seq() && v.seq()->kind == SeqKind::iterator) fail("'generator' object is not reversible");
  const Vector<Value> items = rt.walk(v);
  return items.empty() ? make_undefined("No last item, sequence was empty.") : items.back();
}

Value list(Runtime& rt, const Value& v, Args& args) {
  args.bind({}, 0);
  return make_list(rt.walk(v));
}

Value items(Runtime&, const Value& v, Args& args) {
  args.bind({}, 0);
  Vector<Value> out;
  if (!v.is_undefined()) {
    if (!v.dict()) fail("Can only get item pairs from a mapping.");
    for (const auto& [key, value] : v.dict()->items)
      out.push_back(make_seq(SeqKind::tuple, {key, value}));
  }
  return make_seq(SeqKind::iterator, std::move(out));
}

Value path_or_self(Runtime& rt, const Value& v, const Value* attribute) {
  return attribute && !attribute->is_none() ? rt.path(v, *attribute) : v;
}

Value join_filter(Runtime& rt, const Value& v, Args& args) {
  args.bind({"d", "attribute"}, 0);
  Vector<Str> parts;
  for (const Value& item : rt.walk(v)) parts.push_back(to_str(path_or_self(rt, item, args[1])));
  return make_str(join(parts, args[0] ? to_str(*args[0]) : Str()));
}

Value reverse(Runtime& rt, const Value& v, Args& args) {
  args.bind({}, 0);
  if (v.str()) return slice(v, Value(), Value(), Value(Int{-1}));
  Vector<Value> out = rt.walk(v);
  std::reverse(out.begin(), out.end());
  const bool was_iterator = v.seq() && v.seq()->kind == SeqKind::iterator;
  return make_seq(was_iterator ? SeqKind::list : SeqKind::iterator, std::move(out));
}

Value fold_case(const Value& v, bool case_sensitive) {
  return v.str() && !case_sensitive ? make_str(change_case(*v.str(), Case::lower)) : v;
}

// Sorts `values` by `keys`, stably, as sorted(key=..., reverse=...) does.
Vector<Value> sort_by(Vector<Value> values, const Vector<Value>& keys, bool reverse) {
  Vector<std::size_t> order(values.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    charge(1);
    return reverse ? less(keys[b], keys[a]) : less(keys[a], keys[b]);
  });
  Vector<Value> out;
  for (const std::size_t i : order) out.push_back(std::move(values[i]));
  return out;
}

Value sort(Runtime& rt, const Value& v, Args& args) {
  args.bind({"reverse", "case_sensitive", "attribute"}, 0);
  const bool sensitive = args.flag(1, false);
  Vector<Value> keys;
  const Vector<Value> values = rt.walk(v);
  const Str* attribute = args[2] ? args[2]->str() : nullptr;
  const bool several = attribute && attribute->text().find(',') != std::string::npos;
  for (const Value& item : values) {
    if (several) {
      Vector<Value> parts;
      for (const Str& part : split(*attribute, Str(",", Origin::template_text), -1))
        parts.push_back(fold_case(rt.path(item, make_str(part)), sensitive));
      keys.push_back(make_list(std::move(parts)));
    } else {
      keys.push_back(fold_case(path_or_self(rt, item, args[2]), sensitive));
    }
  }
  return make_list(sort_by(values, keys, args.flag(0, false)));
}

Value dictsort(Runtime&, const Value& v, Args& args) {
  args.bind({"case_sensitive", "by", "reverse"}, 0);
  if (const auto* u = v.as<Undefined>()) fail_undefined(*u);
  if (!v.dict()) fail("dictsort needs a mapping, not " + std::string(type_name(v)));
  const std::string_view by = args[1] ? args.str(1).text() : "key";
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  Vector<Value> pairs, keys;
  for (const auto& [key, value] : v.dict()->items) {
    pairs.push_back(make_seq(SeqKind::tuple, {key, value}));
    keys.push_back(fold_case(by == "key" ? key : value, args.flag(0, false)));
  }
  return make_list(sort_by(std::move(pairs), keys, args.flag(2, false)));
}

Value unique(Runtime& rt, const Value& v, Args& args) {
  args.bind({"case_sensitive", "attribute"}, 0);
  Vector<Value> out, seen;
  for (const Value& item : rt.walk(v)) {
    Value key = fold_case(path_or_self(rt, item, args[1]), args.flag(0, false));
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& s) { return equals(s, key); }))
      continue;
    seen.push_back(std::move(key));
    out.push_back(item);
  }
  return make_seq(SeqKind::iterator, std::move(out));
}

template <bool largest>
Value extreme(Runtime& rt, const Value& v, Args& args) {
  args.bind({"case_sensitive", "attribute"}, 0);
  const Vector<Value> values = rt.walk(v);
  if (values.empty()) return make_undefined("No aggregated item, sequence was empty.");
  std::size_t best = 0;
  Vector<Value> keys;
  for (const Value& item : values)
    keys.push_back(fold_case(path_or_self(rt, item, args[1]), args.flag(0, false)));
  for (std::size_t i = 1; i < values.size(); ++i)
    if (largest ? less(keys[best], keys[i]) : less(keys[i], keys[best])) best = i;
  return values[best];
}

Value sum(Runtime& rt, const Value& v, Args& args) {
  args.bind({"attribute", "start"}, 0);
  Value total = args[1] ? *args[1] : Value(Int{0});
  if (total.str()) fail("sum() can't sum strings");
  for (const Value& item : rt.walk(v)) total = add(total, path_or_self(rt, item, args[0]));
  return total;
}

Value batch(Runtime& rt, const Value& v, Args& args) {
  args.bind({"linecount", "fill_with"}, 1);
  const Int count = to_int(*args[0]);
  Vector<Value> out, row;
  for (const Value& item : rt.walk(v)) {
    if (static_cast<Int>(row.size()) == count) out.push_back(make_list(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (args[1] && !args[1]->is_none())
      for (auto have = static_cast<Int>(row.size()); have < count; ++have) {
        charge(1);
        row.push_back(*args[1]);
      }
    out.push_back(make_list(std::move(row)));
  }
  return make_seq(SeqKind::iterator, std::move(out));
}

Value map(Runtime& rt, const Value& v, Args& args) {
  Vector<Value> out;
  const Vector<Value> values = truthy(v) ? rt.walk(v) : Vector<Value>{};
  if (args.positional.empty()) {
    args.bind({"attribute", "default"}, 1);
    for (const Value& item : values) {
      Value found = rt.path(item, *args[0]);
      out.push_back(found.is_undefined() && args[1] && !args[1]->is_none() ? *args[1]
                                                                           : std::move(found));
    }
  } else {
    if (!args.positional[0].str()) fail("map needs the name of a filter");
    const std::string name(args.positional[0].str()->text());
    Args rest = args;
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : values) out.push_back(rt.filter(name, item, rest));
  }
  return make_seq(SeqKind::iterator, std::move(out));
}

// select, reject, selectattr and rejectattr.
template <bool keep, bool by_attribute>
Value select(Runtime& rt, const Value& v, Args& args) {
  constexpr std::size_t kName = by_attribute ? 1 : 0;
  Vector<Value> out;
  if (!truthy(v)) return make_seq(SeqKind::iterator, {});
  if (by_attribute && args.positional.empty()) fail("Missing parameter for attribute name");
  Args rest;
  std::string name;
  if (args.positional.size() > kName) {
    if (!args.positional[kName].str())
      fail("'" + std::string(args.who) + "' needs the name of a test");
    name = args.positional[kName].str()->text();
    rest.named = args.named;
    rest.positional.assign(args.positional.begin() + kName + 1, args.positional.end());
  }
  for (const Value& item : rt.walk(v)) {
    const Value subject = by_attribute ? rt.path(item, args.positional[0]) : item;
    if ((name.empty() ? truthy(subject) : rt.test(name, subject, rest)) == keep)
      out.push_back(item);
  }
  return make_seq(SeqKind::iterator, std::move(out));
}

constexpr Named kSequenceFilters[] = {
    {"length", length},
    {"count", length},
    {"first", first},
    {"last", last},
    {"list", list},
    {"items", items},
    {"join", join_filter},
    {"reverse", reverse},
    {"sort", sort},
    {"dictsort", dictsort},
    {"unique", unique},
    {"min", extreme<false>},
    {"max", extreme<true>},
    {"sum", sum},
    {"batch", batch},
    {"map", map},
    {"select", select<true, false>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<false, true>},
};

}  // namespace

const Function* find_sequence_filter(std::string_view name) {
  return find_named(kSequenceFilters, name);
}

}  // namespace quire::jinja
