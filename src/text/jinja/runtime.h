// text/jinja/runtime.h - runs a parsed template. One per render; used through text/chat_template.h.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/callable.h"

namespace quire::jinja {

struct Scope {
  std::shared_ptr<Scope> parent;
  Vector<std::pair<std::string, Value>> names;
  bool captured = false;  // a macro holds it

  const Value* find(std::string_view name) const;
  void set(const std::string& name, Value value);
};

struct Loop {
  Vector<Value> items;
  std::size_t index = 0;
  int depth = 1;    // nesting of values, not of loops
  Value last_seen;  // by loop.changed
  bool changed_called = false;
};

class Runtime {
 public:
  Runtime(Scope variables, int depth_max, std::function<std::tm()> now);
  ~Runtime();
  Runtime(const Runtime&) = delete;

  Str run(const Block& block);

  // What filters, tests and methods ask of it.
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value path(const Value& object,
             const Value& dotted);     // map(attribute="a.b"): each part as an item
  Vector<Value> walk(const Value& v);  // iter(v); uses an iterator up
  Value call(const Value& callee, Args args);
  Value filter(std::string_view name, const Value& v, Args args);
  bool test(std::string_view name, const Value& v, Args args);
  Value make_namespace(Vector<std::pair<std::string, Value>> items);
  std::tm now() const { return now_(); }
  int line() const { return line_; }

 private:
  enum class Flow : std::uint8_t { next, break_, continue_ };
  class Descend {  // bounds recursion
   public:
    Descend(Runtime& rt, int line);
    ~Descend() { --rt_.depth_; }
    Descend(const Descend&) = delete;

   private:
    Runtime& rt_;
  };

  Flow run_block(const Block& block);
  Flow run_statement(const Stmt& s);
  Flow run_for(const Stmt& s);
  Flow run_if(const Stmt& s);
  Flow run_with(const Stmt& s);
  void run_call(const Stmt& s);
  void emit(const Value& v);
  Value capture(const Block& body, Flow& flow);  // in a scope of its own
  void assign(const Expr& target, Value value);
  void assign_member(const Expr& target, Value value);
  Value call_macro(const Callable& macro, Args& args);
  Value macro_value(const Stmt& s);

  Value eval(const Expr& e);
  Value eval_operator(const Expr& e);
  Value eval_container(const Expr& e);
  Value eval_compare(const Expr& e);
  Value eval_call(const Expr& e);
  Value eval_filter(const Expr& e);
  Value eval_slice(const Expr& e);
  Value lookup(const std::string& name);
  Args arguments(const Expr& e);
  Value loop_attribute(const LoopRef& loop, std::string_view name);
  Value method(const Value& object, std::string_view name, Function f);

  const int depth_max_;
  const std::function<std::tm()> now_;
  int depth_ = 0;
  int line_ = 0;
  Str* out_ = nullptr;
  Value captured_;  // what Op::captured evaluates to
  std::shared_ptr<Scope> scope_;
  // Namespaces and scopes that macros captured can form cycles; they are emptied at the end.
  Vector<NamespaceRef> namespaces_;
  Vector<std::shared_ptr<Scope>> captured_scopes_;
};

// operators.cc
Value add(const Value& a, const Value& b);
Value arithmetic(Op op, const Value& a, const Value& b);
Value negate(const Value& v);
bool contains(const Value& container, const Value& v);
bool compare(Compare how, const Value& a, const Value& b);
Value slice(const Value& v, const Value& start, const Value& stop, const Value& step);
Value subscript(const Value& v, const Value& key, bool& found);
Value percent_format(const Str& format, const Value& arguments);

}  // namespace quire::jinja
