// text/jinja/ast.h - a parsed template: statements that hold expressions. Made by the parser,
// walked by the runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace quire::jinja {

enum class Op : std::uint8_t {
  constant,
  name,      // names carry `name`
  captured,  // the text a block filter is applied to
  list,
  tuple,
  dict,       // dict: key, value, key, value
  condition,  // kids: test, then, else (may be null)
  or_,
  and_,
  not_,
  compare,  // compare: left, right, right...; `compares` says how
  add,
  sub,
  mul,
  div,
  floordiv,
  mod,
  pow,
  neg,
  pos,
  concat,
  attribute,
  item,
  slice,  // slice: object, start, stop, step (null where left out)
  call,
  filter,
  test,  // kids: callee or value, then positional arguments; `named` the rest
};

enum class Compare : std::uint8_t { eq, ne, lt, le, gt, ge, in, not_in };

struct Expr;
using ExprRef = std::unique_ptr<Expr>;

struct Expr {
  Op op;
  int line;
  int depth = 1;
  std::string name;  // of a name, attribute, filter or test
  Value constant;
  std::vector<ExprRef> kids;
  std::vector<std::pair<std::string, ExprRef>> named;
  std::vector<Compare> compares;
  ExprRef more_positional, more_named;  // f(*list, **dict)
};

struct Stmt;
using Block = std::vector<Stmt>;

enum class StmtKind : std::uint8_t {
  text,
  output,
  for_,
  if_,
  set,
  set_block,
  macro,
  call,
  filter,
  with,
  generation,
  break_,
  continue_,
};

struct Parameter {
  std::string name;
  ExprRef fallback;  // null when it has none
};

struct Stmt {
  StmtKind kind;
  int line;
  Value text;  // template text
  // output: one; for: target, iterable, filter or null; if: one test per body (the else has none);
  // set: target, value; set_block: target, filter or null; call: the call; filter: the filter;
  // with: target, value...
  std::vector<ExprRef> exprs;
  std::vector<Block> bodies;  // for: body, else; if: one per branch, else last; others: one
  std::string name;           // of a macro
  std::vector<Parameter> parameters;
  bool uses_varargs = false, uses_kwargs = false,
       uses_caller = false;  // which extras a macro's body names
};

}  // namespace quire::jinja
