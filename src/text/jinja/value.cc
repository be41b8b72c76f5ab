#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/callable.h"
#include "text/jinja/runtime.h"

namespace quire::jinja {

void fail(std::string message) { throw Failure{Code::invalid, std::move(message)}; }
void fail_unsupported(std::string message) { throw Failure{Code::unsupported, std::move(message)}; }
void fail_undefined(const Undefined& u) { fail(u.why ? *u.why : "a value is undefined"); }

namespace {
int depth_of(const Value& v) {
  if (const Seq* s = v.seq()) return s->depth;
  if (const Dict* d = v.dict()) return d->depth;
  if (const auto* c = v.as<CallableRef>()) return (*c)->depth;
  if (const auto* l = v.as<LoopRef>()) return (*l)->depth;
  return 0;
}

int checked_depth(int below) {
  if (below >= kValueDepthMax)
    throw Failure{Code::exhausted,
                  "values nested deeper than " + std::to_string(kValueDepthMax) + " levels"};
  return below + 1;
}
}  // namespace

Value make_str(std::string_view text, Origin origin, std::uint32_t source) {
  charge_bytes(text.size());
  return Value(StrRef(make_counted<Str>(text, origin, source)));
}
Value make_str(Str s) {
  charge_copy(s.size());
  return Value(StrRef(make_counted<Str>(std::move(s))));
}

Value make_seq(SeqKind kind, Vector<Value> items) {
  charge(items.size());
  auto seq = make_counted<Seq>();
  int below = 0;
  for (const Value& v : items) {
    below = std::max(below, depth_of(v));
    seq->data = seq->data || has_data(v);
  }
  seq->kind = kind;
  seq->depth = checked_depth(below);
  seq->items = std::move(items);
  return Value(SeqRef(std::move(seq)));
}

Value make_dict(Dict dict) {
  charge(dict.items.size());
  int below = 0;
  for (const auto& [key, value] : dict.items) {
    below = std::max({below, depth_of(key), depth_of(value)});
    dict.data = dict.data || has_data(key) || has_data(value);
  }
  dict.depth = checked_depth(below);
  return Value(DictRef(make_counted<Dict>(std::move(dict))));
}

int callable_depth(const Value& self) { return checked_depth(depth_of(self)); }

Value make_undefined(std::string why) {
  return Value(Undefined{make_counted<const std::string>(std::move(why))});
}

const Value* Dict::find(const Value& key) const {
  for (const auto& [k, v] : items)
    if (equals(k, key)) return &v;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  charge(items.size() / 8);
  for (const auto& [k, v] : items)
    if (const Str* s = k.str(); s && s->text() == key) return &v;
  return nullptr;
}

void Dict::set(Value key, Value value) {
  if (const Value* old = find(key))
    *const_cast<Value*>(old) = std::move(value);
  else
    items.emplace_back(std::move(key), std::move(value));
}

std::string_view type_name(const Value& v) {
  static constexpr std::string_view kSeqNames[] = {
      "list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
  static constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool",       "int",
                                                "float",     "str",      "list",       "dict",
                                                "Namespace", "function", "LoopContext"};
  if (const Seq* s = v.seq()) return kSeqNames[static_cast<std::size_t>(s->kind)];
  return kNames[v.rep.index()];
}

bool truthy(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (const auto* b = v.as<bool>()) return *b;
  if (const auto* i = v.as<Int>()) return *i != 0;
  if (const auto* d = v.as<double>()) return *d != 0;
  if (const Str* s = v.str()) return !s->empty();
  if (const Seq* s = v.seq()) return s->kind == SeqKind::iterator || !s->items.empty();
  if (const Dict* d = v.dict()) return !d->items.empty();
  return true;
}

bool is_number(const Value& v) { return v.as<bool>() || v.as<Int>() || v.as<double>(); }

Int to_int(const Value& v) {
  if (const auto* b = v.as<bool>()) return *b ? 1 : 0;
  if (const auto* i = v.as<Int>()) return *i;
  if (const auto* u = v.as<Undefined>()) fail_undefined(*u);
  fail("'" + std::string(type_name(v)) + "' object cannot be interpreted as an integer");
}

double to_double(const Value& v) {
  if (const auto* d = v.as<double>()) return *d;
  return static_cast<double>(to_int(v));
}

bool equals(const Value& a, const Value& b) {
  charge(1);
  if (is_number(a) && is_number(b)) {
    if (a.as<double>() || b.as<double>()) return to_double(a) == to_double(b);
    return to_int(a) == to_int(b);
  }
  if (a.rep.index() != b.rep.index()) return false;
  if (a.is_undefined() || a.is_none()) return true;
  if (const Str* s = a.str()) {
    if (s->size() != b.str()->size()) return false;
    charge_copy(s->size());
    return s->text() == b.str()->text();
  }
  if (const Seq* s = a.seq()) {
    const Seq* t = b.seq();
    if (s == t) return true;
    if (s->kind != t->kind || s->kind == SeqKind::iterator || s->kind == SeqKind::values)
      return false;
    return std::equal(s->items.begin(), s->items.end(), t->items.begin(), t->items.end(), equals);
  }
  if (const Dict* d = a.dict()) {
    const Dict* e = b.dict();
    if (d == e) return true;
    if (d->items.size() != e->items.size()) return false;
    return std::all_of(d->items.begin(), d->items.end(), [&](const auto& item) {
      const Value* other = e->find(item.first);
      return other && equals(item.second, *other);
    });
  }
  if (const auto* n = a.as<NamespaceRef>()) return n->get() == b.as<NamespaceRef>()->get();
  if (const auto* c = a.as<CallableRef>()) return c->get() == b.as<CallableRef>()->get();
  return a.as<LoopRef>()->get() == b.as<LoopRef>()->get();
}

bool less(const Value& a, const Value& b) {
  charge(1);
  if (is_number(a) && is_number(b)) {
    if (a.as<double>() || b.as<double>()) return to_double(a) < to_double(b);
    return to_int(a) < to_int(b);
  }
  if (a.str() && b.str()) {
    charge_copy(std::min(a.str()->size(), b.str()->size()));
    return a.str()->text() < b.str()->text();  // UTF-8 sorts as its code points do
  }
  if (a.is_list_or_tuple() && b.is_list_or_tuple() && a.seq()->kind == b.seq()->kind) {
    const auto &s = a.seq()->items, &t = b.seq()->items;
    for (std::size_t i = 0; i < std::min(s.size(), t.size()); ++i)
      if (!equals(s[i], t[i])) return less(s[i], t[i]);
    return s.size() < t.size();
  }
  if (const auto* u = a.as<Undefined>()) fail_undefined(*u);
  if (const auto* u = b.as<Undefined>()) fail_undefined(*u);
  fail("'<' not supported between instances of '" + std::string(type_name(a)) + "' and '" +
       std::string(type_name(b)) + "'");
}

bool has_data(const Value& v) {
  if (const Str* s = v.str()) return s->has_data();
  if (const Seq* s = v.seq()) return s->data;
  if (const Dict* d = v.dict()) return d->data;
  return v.as<NamespaceRef>() != nullptr;  // may hold itself, so it is not walked
}

}  // namespace quire::jinja
