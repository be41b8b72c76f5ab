// text/jinja/callable.h - what a template can call: built-in functions, methods of values, macros;
// and their arguments.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace quire::jinja {

class Runtime;
struct Scope;

// The arguments of one call, laid out by parameter names as Python would.
struct Args {
  std::string_view who;  // for error messages
  Vector<Value> positional;
  Vector<std::pair<std::string, Value>> named;

  // After it, (*this)[i] is the value of names[i], or null if not given. Fails on too few, too many
  // or unknown ones.
  void bind(std::initializer_list<std::string_view> names, std::size_t required);
  const Value* operator[](std::size_t i) const { return bound_[i]; }
  const Str& str(std::size_t i) const;             // a string argument that is there
  Int integer(std::size_t i, Int fallback) const;  // fallback when absent or none
  bool flag(std::size_t i, bool fallback) const;

 private:
  Vector<const Value*> bound_;
};

using Function = Value (*)(Runtime&, const Value& self, Args&);

struct Named {  // an entry in the tables of filters, tests, methods and globals
  std::string_view name;
  Function function;
};

const Function* find_filter(std::string_view name);
const Function* find_test(std::string_view name);
const Function* find_global(std::string_view name);
Function find_method(const Value& self,
                     std::string_view name);  // null when its type has no such method

bool is_forbidden_method(const Value& self, std::string_view name);  // it would change a dict

struct Callable {
  std::string name;
  Function function = nullptr;  // built in
  Value self;                   // whose method it is
  const Stmt* macro = nullptr;
  std::shared_ptr<Scope> scope;  // where the macro was defined
  Value caller;                  // unused unless a call block made it
  int depth = 1;
};

int callable_depth(const Value& self);

template <std::size_t N>
const Function* find_named(const Named (&table)[N], std::string_view name) {
  for (const Named& entry : table)
    if (entry.name == name) return &entry.function;
  return nullptr;
}

}  // namespace quire::jinja
