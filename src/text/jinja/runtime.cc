// Statements, scopes and macros.
#include "text/jinja/runtime.h"

#include <algorithm>

#include "text/jinja/unicode.h"

namespace quire::jinja {

const Value* Scope::find(std::string_view name) const {
  for (const Scope* s = this; s; s = s->parent.get()) {
    charge(s->names.size() / 8);
    for (const auto& [key, value] : s->names)
      if (key == name) return &value;
  }
  return nullptr;
}

void Scope::set(const std::string& name, Value value) {
  charge(names.size() / 8);
  for (auto& [key, old] : names) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  names.emplace_back(name, std::move(value));
}

Runtime::Runtime(Scope variables, int depth_max, std::function<std::tm()> now)
    : depth_max_(depth_max), now_(std::move(now)) {
  auto base = make_counted<Scope>(std::move(variables));
  scope_ = make_counted<Scope>();
  scope_->parent = std::move(base);
}

Runtime::~Runtime() {
  for (const NamespaceRef& n : namespaces_) n->items.clear();
  for (const auto& s : captured_scopes_) s->names.clear();
}

Runtime::Descend::Descend(Runtime& rt, int line) : rt_(rt) {
  charge(1);
  rt.line_ = line;
  if (rt.depth_ >= rt.depth_max_)
    throw Failure{Code::exhausted, "the chat template recurses deeper than " +
                                       std::to_string(rt.depth_max_) + " levels"};
  ++rt.depth_;
}

Str Runtime::run(const Block& block) {
  Str out;
  out_ = &out;
  try {
    run_block(block);
  } catch (Failure& f) {
    if (!f.own_words) f.message += " (line " + std::to_string(line_) + " of the chat template)";
    throw;
  }
  return out;
}

Runtime::Flow Runtime::run_block(const Block& block) {
  for (const Stmt& s : block)
    if (const Flow flow = run_statement(s); flow != Flow::next) return flow;
  return Flow::next;
}

Runtime::Flow Runtime::run_statement(const Stmt& s) {
  Descend descend(*this, s.line);
  Flow flow = Flow::next;
  switch (s.kind) {
    case StmtKind::text:
      emit(s.text);
      break;
    case StmtKind::output:
      emit(eval(*s.exprs[0]));
      break;
    case StmtKind::for_:
      return run_for(s);
    case StmtKind::if_:
      return run_if(s);
    case StmtKind::set:
      assign(*s.exprs[0], eval(*s.exprs[1]));
      break;
    case StmtKind::set_block:
    case StmtKind::filter: {
      Value text = capture(s.bodies[0], flow);
      if (flow != Flow::next) break;
      const Value outer = std::exchange(captured_, std::move(text));
      Value result = eval(*s.exprs.back());
      captured_ = outer;
      if (s.kind == StmtKind::filter) {
        if (!result.str()) fail("the filter of a block must return a string");
        emit(result);
      } else {
        assign(*s.exprs[0], std::move(result));
      }
      break;
    }
    case StmtKind::macro:
      scope_->set(s.name, macro_value(s));
      break;
    case StmtKind::call:
      run_call(s);
      break;
    case StmtKind::with:
      return run_with(s);
    case StmtKind::generation:
      emit(capture(s.bodies[0], flow));
      break;
    case StmtKind::break_:
      return Flow::break_;
    case StmtKind::continue_:
      return Flow::continue_;
  }
  return flow;
}

namespace {
// Puts back what a block replaced, however it ends.
template <class T>
class Restore {
 public:
  Restore(T& place, T value) : place_(place), old_(std::exchange(place, std::move(value))) {}
  ~Restore() { place_ = std::move(old_); }
  Restore(const Restore&) = delete;

 private:
  T& place_;
  T old_;
};

std::shared_ptr<Scope> scope_in(std::shared_ptr<Scope> parent) {
  auto s = make_counted<Scope>();
  s->parent = std::move(parent);
  return s;
}
}  // namespace

Runtime::Flow Runtime::run_for(const Stmt& s) {
  Vector<Value> items = walk(eval(*s.exprs[1]));
  if (s.exprs[2]) {
    Vector<Value> kept;
    for (Value& v : items) {
      Restore scope(scope_, scope_in(scope_));
      assign(*s.exprs[0], v);
      if (truthy(eval(*s.exprs[2]))) kept.push_back(std::move(v));
    }
    items = std::move(kept);
  }
  auto loop = make_counted<Loop>();
  loop->depth = make_list(items).seq()->depth;
  loop->items = std::move(items);
  bool completed = false;  // as jinja2 does it, the else runs unless some iteration reached its end
  for (; loop->index < loop->items.size(); ++loop->index) {
    Restore scope(scope_, scope_in(scope_));
    scope_->set("loop", Value(loop));
    assign(*s.exprs[0], loop->items[loop->index]);
    const Flow flow = run_block(s.bodies[0]);
    completed = completed || flow == Flow::next;
    if (flow == Flow::break_) break;
  }
  if (completed || s.bodies[1].empty()) return Flow::next;
  Restore scope(scope_, scope_in(scope_));
  return run_block(s.bodies[1]);
}

Runtime::Flow Runtime::run_if(const Stmt& s) {
  for (std::size_t i = 0; i < s.exprs.size(); ++i)
    if (truthy(eval(*s.exprs[i]))) return run_block(s.bodies[i]);
  return s.bodies.size() > s.exprs.size() ? run_block(s.bodies.back()) : Flow::next;
}

Runtime::Flow Runtime::run_with(const Stmt& s) {
  Vector<Value> values;  // all evaluated outside
  for (std::size_t i = 1; i < s.exprs.size(); i += 2) values.push_back(eval(*s.exprs[i]));
  Restore scope(scope_, scope_in(scope_));
  for (std::size_t i = 0; i < values.size(); ++i) assign(*s.exprs[2 * i], std::move(values[i]));
  return run_block(s.bodies[0]);
}

void Runtime::run_call(const Stmt& s) {
  const Expr& call_expr = *s.exprs[0];
  const Value callee = eval(*call_expr.kids[0]);
  Args args = arguments(call_expr);
  args.named.emplace_back("caller", macro_value(s));
  emit(call(callee, std::move(args)));
}

void Runtime::emit(const Value& v) {
  const Str text = v.str() ? Str() : to_str(v);
  const Str& s = v.str() ? *v.str() : text;
  charge_growth(out_->size(), s.size());
  out_->append(s);
}

Value Runtime::capture(const Block& body, Flow& flow) {
  Str text;
  {
    Restore out(out_, &text);
    Restore scope(scope_, scope_in(scope_));
    flow = run_block(body);
  }
  return make_str(std::move(text));
}

void Runtime::assign(const Expr& target, Value value) {
  if (target.op == Op::name) return scope_->set(target.name, std::move(value));
  if (target.op == Op::attribute) return assign_member(target, std::move(value));
  const Vector<Value> values = walk(value);
  if (values.size() != target.kids.size())
    fail("cannot unpack " + std::to_string(values.size()) + " values into " +
         std::to_string(target.kids.size()) + " names");
  for (std::size_t i = 0; i < values.size(); ++i) assign(*target.kids[i], values[i]);
}

void Runtime::assign_member(const Expr& target, Value value) {
  const Value object = lookup(target.kids[0]->name);
  const auto* ns = object.as<NamespaceRef>();
  if (!ns) fail("cannot assign attribute '" + target.name + "' on what is not a namespace");
  if (target.name.starts_with('_'))
    fail("a namespace holds no names that begin with an underscore");
  charge((*ns)->items.size() / 8);
  for (auto& [key, old] : (*ns)->items) {
    if (key != target.name) continue;
    old = std::move(value);
    return;
  }
  (*ns)->items.emplace_back(target.name, std::move(value));
}

Value Runtime::macro_value(const Stmt& s) {
  auto macro = make_counted<Callable>();
  macro->name = s.name;
  macro->macro = &s;
  macro->scope = scope_;
  if (!scope_->captured) {
    scope_->captured = true;
    captured_scopes_.push_back(scope_);
  }
  return Value(CallableRef(std::move(macro)));
}

Value Runtime::call_macro(const Callable& macro, Args& args) {
  const Stmt& s = *macro.macro;
  Descend descend(*this, s.line);
  Restore scope(scope_, scope_in(macro.scope));
  const std::size_t given = std::min(args.positional.size(), s.parameters.size());
  charge(s.parameters.size() * (1 + args.named.size() / 8));
  Vector<const Expr*> fallbacks(s.parameters.size(), nullptr);
  for (std::size_t i = 0; i < s.parameters.size(); ++i) {
    const Parameter& p = s.parameters[i];
    const auto named = std::find_if(args.named.begin(), args.named.end(),
                                    [&](const auto& n) { return n.first == p.name; });
    if (i < given) {
      if (named != args.named.end()) fail("macro '" + macro.name + "' got '" + p.name + "' twice");
      scope_->set(p.name, std::move(args.positional[i]));
    } else if (named != args.named.end()) {
      scope_->set(p.name, std::move(named->second));
      args.named.erase(named);
    } else if (p.fallback) {
      fallbacks[i] = p.fallback.get();
    } else {
      scope_->set(p.name, make_undefined("parameter '" + p.name + "' was not provided"));
    }
  }
  for (std::size_t i = 0; i < fallbacks.size(); ++i)
    if (fallbacks[i]) scope_->set(s.parameters[i].name, eval(*fallbacks[i]));
  if (s.uses_caller) {
    Value caller = make_undefined("No caller defined");
    std::erase_if(args.named, [&](auto& n) {
      return n.first == "caller" && (caller = std::move(n.second), true);
    });
    scope_->set("caller", std::move(caller));
  }
  if (s.uses_kwargs) {
    Dict kwargs;
    for (auto& [name, value] : args.named) kwargs.set(make_str(name), std::move(value));
    scope_->set("kwargs", make_dict(std::move(kwargs)));
  } else if (!args.named.empty()) {
    fail("macro '" + macro.name + "' takes no argument named '" + args.named[0].first + "'");
  }
  if (s.uses_varargs) {
    Vector<Value> rest(args.positional.begin() + static_cast<std::ptrdiff_t>(given),
                       args.positional.end());
    scope_->set("varargs", make_seq(SeqKind::tuple, std::move(rest)));
  } else if (args.positional.size() > given) {
    fail("macro '" + macro.name + "' takes at most " + std::to_string(s.parameters.size()) +
         " arguments");
  }
  Flow flow;
  return capture(s.bodies[0], flow);
}

Value Runtime::make_namespace(Vector<std::pair<std::string, Value>> items) {
  auto ns = make_counted<Namespace>();
  ns->items = std::move(items);
  namespaces_.push_back(ns);
  return Value(std::move(ns));
}

Vector<Value> Runtime::walk(const Value& v) {
  if (v.is_undefined()) return {};
  if (const Seq* s = v.seq()) {
    charge(s->items.size());
    if (s->kind == SeqKind::iterator && std::exchange(s->used, true)) return {};
    return s->items;
  }
  Vector<Value> out;
  if (const Dict* d = v.dict()) {
    charge(d->items.size());
    for (const auto& item : d->items) out.push_back(item.first);
    return out;
  }
  if (const Str* s = v.str()) {
    charge(s->size());
    for (std::size_t at = 0; at < s->size();) {
      const std::size_t size = code_point_at(s->text(), at).size;
      out.push_back(make_str(s->slice(at, at + size)));
      at += size;
    }
    return out;
  }
  fail("'" + std::string(type_name(v)) + "' object is not iterable");
}

}  // namespace quire::jinja
