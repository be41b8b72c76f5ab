// text/jinja/value.h - what a template computes with: Python's values, as far as chat templates
// need them.
//
// Everything but a namespace and an iterator is immutable and shared (the sandbox transformers uses
// forbids changing lists and dicts), so copies are cheap and nothing can contain itself.
//
//   Value v = make_list({Value(Int{1}), make_str("a", Origin::data)});
//   repr(v)   // [1, 'a']
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/jinja/meter.h"
#include "text/jinja/str.h"

namespace quire::jinja {

struct Value;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;

using Int = __int128;  // Python's are unbounded; beyond this is an error, not a wrong number

struct None {};

// Prints as nothing; `why` is what an error says when it is used for more than that.
struct Undefined {
  std::shared_ptr<const std::string> why;
};

enum class SeqKind : std::uint8_t { list, tuple, range, keys, values, items, iterator };

struct Seq {
  SeqKind kind = SeqKind::list;
  Vector<Value> items;
  Int first = 0, stop = 0, step = 1;  // of a range, for printing it
  int depth = 1;              // nesting, bounded so that freeing it cannot exhaust the stack
  bool data = false;          // whether any string inside came from data
  mutable bool used = false;  // an iterator can be walked once
};

using StrRef = std::shared_ptr<const Str>;
using SeqRef = std::shared_ptr<const Seq>;
using DictRef = std::shared_ptr<const Dict>;
using NamespaceRef = std::shared_ptr<Namespace>;
using CallableRef = std::shared_ptr<const Callable>;
using LoopRef = std::shared_ptr<Loop>;

template <class T, class Variant>
inline constexpr bool is_alternative = false;
template <class T, class... Ts>
inline constexpr bool is_alternative<T, std::variant<Ts...>> = (std::is_same_v<T, Ts> || ...);

struct Value {
  using Rep = std::variant<Undefined, None, bool, Int, double, StrRef, SeqRef, DictRef,
                           NamespaceRef, CallableRef, LoopRef>;
  Rep rep;

  Value() : rep(None{}) {}
  template <class T>
  requires is_alternative<T, Rep>
  explicit Value(T v) : rep(std::in_place_type<T>, std::move(v)) {}

  template <class T>
  const T* as() const {
    return std::get_if<T>(&rep);
  }
  bool is_undefined() const { return as<Undefined>() != nullptr; }
  bool is_none() const { return as<None>() != nullptr; }
  const Str* str() const { return as<StrRef>() ? as<StrRef>()->get() : nullptr; }
  const Seq* seq() const { return as<SeqRef>() ? as<SeqRef>()->get() : nullptr; }
  const Dict* dict() const { return as<DictRef>() ? as<DictRef>()->get() : nullptr; }
  bool is_list_or_tuple() const { return seq() && seq()->kind <= SeqKind::tuple; }
};

struct Dict {
  Vector<std::pair<Value, Value>> items;  // in order of insertion
  int depth = 1;
  bool data = false;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(Value key, Value value);  // replaces the value of an equal key in place
};

struct Namespace {
  Vector<std::pair<std::string, Value>> items;
};

[[noreturn]] void fail(std::string message);              // the template or its data is wrong
[[noreturn]] void fail_unsupported(std::string message);  // right, but not in our subset

inline constexpr int kValueDepthMax = 100;

Value make_str(std::string_view text, Origin origin = Origin::template_text,
               std::uint32_t source = 0);
Value make_str(Str s);
Value make_seq(SeqKind kind, Vector<Value> items);
inline Value make_list(Vector<Value> items) { return make_seq(SeqKind::list, std::move(items)); }
Value make_dict(Dict dict);
Value make_undefined(std::string why);

std::string_view type_name(const Value& v);  // as Python's type(v).__name__
bool truthy(const Value& v);
bool equals(const Value& a, const Value& b);
bool less(const Value& a, const Value& b);  // fails where Python raises TypeError
bool is_number(const Value& v);             // bool, int, float
Int to_int(const Value& v);                 // of a bool or int; fails otherwise
double to_double(const Value& v);           // of a number
[[noreturn]] void fail_undefined(const Undefined& u);

Str to_str(const Value& v);        // str(v), origins kept
std::string repr(const Value& v);  // repr(v)
std::string repr_text(std::string_view text);
std::string int_text(Int v);
std::string float_text(double v);  // repr(float)
bool has_data(const Value& v);     // whether any string inside came from data

}  // namespace quire::jinja
