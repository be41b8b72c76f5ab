// Expressions: names, attributes, items, calls.
#include <algorithm>

#include "text/jinja/runtime.h"

namespace quire::jinja {

Value Runtime::eval(const Expr& e) {
  Descend descend(*this, e.line);
  switch (e.op) {
    case Op::constant:
      return e.constant;
    case Op::name:
      return lookup(e.name);
    case Op::captured:
      return captured_;
    case Op::list:
    case Op::tuple:
    case Op::dict:
      return eval_container(e);
    case Op::condition:
      if (truthy(eval(*e.kids[0]))) return eval(*e.kids[1]);
      return e.kids[2] ? eval(*e.kids[2]) : make_undefined("the inline if-expression has no else");
    case Op::or_:
    case Op::and_: {
      Value left = eval(*e.kids[0]);
      return truthy(left) == (e.op == Op::or_) ? left : eval(*e.kids[1]);
    }
    case Op::not_:
      return Value(!truthy(eval(*e.kids[0])));
    case Op::compare:
      return eval_compare(e);
    case Op::attribute:
      return attribute(eval(*e.kids[0]), e.name);
    case Op::item: {
      const Value object = eval(*e.kids[0]);
      return item(object, eval(*e.kids[1]));
    }
    case Op::slice:
      return eval_slice(e);
    case Op::call:
      return eval_call(e);
    case Op::filter:
    case Op::test:
      return eval_filter(e);
    default:
      return eval_operator(e);
  }
}

Value Runtime::eval_operator(const Expr& e) {
  if (e.op == Op::concat) {
    Str out;
    for (const ExprRef& kid : e.kids) {
      const Str part = to_str(eval(*kid));
      charge_growth(out.size(), part.size());
      out.append(part);
    }
    return make_str(std::move(out));
  }
  const Value left = eval(*e.kids[0]);
  if (e.op == Op::neg) return negate(left);
  if (e.op == Op::pos) {
    if (const auto* u = left.as<Undefined>()) fail_undefined(*u);
    if (!is_number(left))
      fail("bad operand type for unary +: '" + std::string(type_name(left)) + "'");
    return left.as<bool>() ? Value(to_int(left)) : left;
  }
  const Value right = eval(*e.kids[1]);
  return e.op == Op::add ? add(left, right) : arithmetic(e.op, left, right);
}

Value Runtime::eval_container(const Expr& e) {
  if (e.op == Op::dict) {
    Dict dict;
    for (std::size_t i = 0; i < e.kids.size(); i += 2) {
      Value key = eval(*e.kids[i]);
      if (key.dict() || (key.seq() && key.seq()->kind == SeqKind::list))
        fail("unhashable type: '" + std::string(type_name(key)) + "'");
      dict.set(std::move(key), eval(*e.kids[i + 1]));
    }
    return make_dict(std::move(dict));
  }
  Vector<Value> items;
  for (const ExprRef& kid : e.kids) items.push_back(eval(*kid));
  return make_seq(e.op == Op::list ? SeqKind::list : SeqKind::tuple, std::move(items));
}

Value Runtime::eval_compare(const Expr& e) {
  Value left = eval(*e.kids[0]);
  for (std::size_t i = 0; i < e.compares.size(); ++i) {
    Value right = eval(*e.kids[i + 1]);
    if (!compare(e.compares[i], left, right)) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Value Runtime::eval_slice(const Expr& e) {
  const Value object = eval(*e.kids[0]);
  Value bounds[3];
  for (std::size_t i = 0; i < 3; ++i)
    if (e.kids[i + 1]) bounds[i] = eval(*e.kids[i + 1]);
  return slice(object, bounds[0], bounds[1], bounds[2]);
}

Args Runtime::arguments(const Expr& e) {
  Args args;
  for (std::size_t i = 1; i < e.kids.size(); ++i) args.positional.push_back(eval(*e.kids[i]));
  if (e.more_positional)
    for (Value& v : walk(eval(*e.more_positional))) args.positional.push_back(std::move(v));
  const auto add_named = [&](const std::string& name, Value value) {
    if (std::any_of(args.named.begin(), args.named.end(),
                    [&](const auto& n) { return n.first == name; }))
      fail("argument '" + name + "' given twice");
    args.named.emplace_back(name, std::move(value));
  };
  for (const auto& [name, value] : e.named) add_named(name, eval(*value));
  if (e.more_named) {
    const Value more = eval(*e.more_named);
    if (!more.dict()) fail("what follows '**' must be a mapping");
    for (const auto& [key, value] : more.dict()->items) {
      if (!key.str()) fail("keywords must be strings");
      add_named(std::string(key.str()->text()), value);
    }
  }
  return args;
}

Value Runtime::eval_call(const Expr& e) {
  const Value callee = eval(*e.kids[0]);
  Args args = arguments(e);
  line_ = e.line;
  return call(callee, std::move(args));
}

Value Runtime::eval_filter(const Expr& e) {
  const Value v = eval(*e.kids[0]);
  Args args = arguments(e);
  line_ = e.line;
  if (e.op == Op::test) return Value(test(e.name, v, std::move(args)));
  return filter(e.name, v, std::move(args));
}

Value Runtime::lookup(const std::string& name) {
  if (const Value* v = scope_->find(name)) return *v;
  if (const Function* f = find_global(name)) {
    auto callable = make_counted<Callable>();
    callable->name = name;
    callable->function = *f;
    return Value(CallableRef(std::move(callable)));
  }
  return make_undefined("'" + name + "' is undefined");
}

Value Runtime::call(const Value& callee, Args args) {
  if (const auto* u = callee.as<Undefined>()) fail_undefined(*u);
  const auto* callable = callee.as<CallableRef>();
  if (!callable) fail("'" + std::string(type_name(callee)) + "' object is not callable");
  const CallableRef held = *callable;  // the call may replace the variable that holds it
  if (held->macro) return call_macro(*held, args);
  args.who = held->name;
  return held->function(*this, held->self, args);
}

Value Runtime::filter(std::string_view name, const Value& v, Args args) {
  const Function* f = find_filter(name);
  if (!f) fail_unsupported("the filter '" + std::string(name) + "'");
  args.who = name;
  return (*f)(*this, v, args);
}

bool Runtime::test(std::string_view name, const Value& v, Args args) {
  const Function* f = find_test(name);
  if (!f) fail_unsupported("the test '" + std::string(name) + "'");
  args.who = name;
  return truthy((*f)(*this, v, args));
}

Value Runtime::method(const Value& object, std::string_view name, Function f) {
  auto callable = make_counted<Callable>();
  callable->name = name;
  callable->function = f;
  callable->self = object;
  callable->depth = callable_depth(object);
  return Value(CallableRef(std::move(callable)));
}

Value Runtime::attribute(const Value& object, std::string_view name) {
  if (const auto* u = object.as<Undefined>()) fail_undefined(*u);
  if (const auto* ns = object.as<NamespaceRef>()) {
    charge((*ns)->items.size() / 8);
    for (const auto& [key, value] : (*ns)->items)
      if (key == name) return value;
  } else if (const auto* loop = object.as<LoopRef>()) {
    return loop_attribute(*loop, name);
  } else if (const auto* macro = object.as<CallableRef>();
             macro && (*macro)->macro && name == "name") {
    return make_str((*macro)->name);
  } else if (const Function f = find_method(object, name)) {
    return method(object, name, f);
  }
  if (const Dict* d = object.dict(); d && !is_forbidden_method(object, name)) {
    if (const Value* v = d->find(name)) return *v;
  }
  return make_undefined("'" + std::string(type_name(object)) + " object' has no attribute '" +
                        std::string(name) + "'");
}

Value Runtime::item(const Value& object, const Value& key) {
  if (const auto* u = object.as<Undefined>()) fail_undefined(*u);
  bool found = false;
  Value v = subscript(object, key, found);
  if (found) return v;
  if (const Str* name = key.str(); name && !object.dict()) return attribute(object, name->text());
  if (const Str* name = key.str()) {
    if (const Function f = find_method(object, name->text()))
      return method(object, name->text(), f);
  }
  return make_undefined("'" + std::string(type_name(object)) + " object' has no element " +
                        repr(key));
}

Value Runtime::path(const Value& object, const Value& dotted) {
  const Str* path = dotted.str();
  if (!path) return item(object, dotted);
  Value v = object;
  for (std::size_t at = 0;;) {
    const std::size_t dot = path->text().find('.', at);
    const std::string part(path->text().substr(at, dot == std::string::npos ? dot : dot - at));
    const bool number = !part.empty() && std::all_of(part.begin(), part.end(),
                                                     [](char c) { return c >= '0' && c <= '9'; });
    v = item(v, number && part.size() < 10 ? Value(Int{std::stoi(part)}) : make_str(part));
    if (dot == std::string::npos) return v;
    at = dot + 1;
  }
}

Value Runtime::loop_attribute(const LoopRef& loop, std::string_view name) {
  const auto index = static_cast<Int>(loop->index), length = static_cast<Int>(loop->items.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(length - index);
  if (name == "revindex0") return Value(length - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == length);
  if (name == "length") return Value(length);
  if (name == "depth") return Value(Int{1});
  if (name == "depth0") return Value(Int{0});
  if (name == "previtem")
    return loop->index > 0 ? loop->items[loop->index - 1]
                           : make_undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < length ? loop->items[loop->index + 1]
                              : make_undefined("there is no next item");
  if (name == "cycle")
    return method(Value(loop), name, [](Runtime&, const Value& self, Args& args) {
      if (args.positional.empty()) fail("no items for cycling given");
      return args.positional[(*self.as<LoopRef>())->index % args.positional.size()];
    });
  if (name == "changed")
    return method(Value(loop), name, [](Runtime&, const Value& self, Args& args) {
      Loop& l = **self.as<LoopRef>();
      Value seen = make_seq(SeqKind::tuple, args.positional);
      if (l.changed_called && equals(l.last_seen, seen)) return Value(false);
      l.changed_called = true;
      l.last_seen = std::move(seen);
      return Value(true);
    });
  return make_undefined("'LoopContext object' has no attribute '" + std::string(name) + "'");
}

}  // namespace quire::jinja
