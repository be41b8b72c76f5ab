#include "text/jinja/expression_parser.h"

#include <algorithm>

namespace quire::jinja {
namespace {
constexpr int kNestingMax = 100;
constexpr int kDepthMax = 250;
}  // namespace

void ExpressionParser::fail_here(const std::string& message) const {
  fail(message + " (line " + std::to_string(current().line) + " of the chat template)");
}

ExpressionParser::Nest::Nest(ExpressionParser& p) : parser(p) {
  if (p.nesting_ >= kNestingMax)
    p.fail_here("nested deeper than " + std::to_string(kNestingMax) + " levels");
  ++p.nesting_;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail_here("expected '" + std::string(op) + "', found " + describe(current()));
}

std::string ExpressionParser::expect_name() {
  if (current().kind != TokenKind::name) fail_here("expected a name, found " + describe(current()));
  return next().text;
}

ExprRef ExpressionParser::node(Op op, int line) const {
  auto e = std::make_unique<Expr>();
  e->op = op;
  e->line = line;
  return e;
}

void ExpressionParser::add(Expr& parent, ExprRef kid) const {
  if (kid) {
    parent.depth = std::max(parent.depth, kid->depth + 1);
    if (parent.depth > kDepthMax)
      fail_here("an expression of more than " + std::to_string(kDepthMax) + " chained operators");
  }
  parent.kids.push_back(std::move(kid));
}

ExprRef ExpressionParser::binary(Op op, int line, ExprRef left, ExprRef right) const {
  ExprRef e = node(op, line);
  add(*e, std::move(left));
  add(*e, std::move(right));
  return e;
}

ExprRef ExpressionParser::expression(bool with_condition) {
  Nest nest(*this);
  if (!with_condition) return or_expression();
  ExprRef then = or_expression();
  while (at_name("if")) {
    ExprRef e = node(Op::condition, next().line);
    add(*e, or_expression());
    add(*e, std::move(then));
    add(*e, skip_name("else") ? expression() : nullptr);
    then = std::move(e);
  }
  return then;
}

ExprRef ExpressionParser::or_expression() {
  ExprRef left = and_expression();
  while (at_name("or")) {
    const int line = next().line;
    left = binary(Op::or_, line, std::move(left), and_expression());
  }
  return left;
}

ExprRef ExpressionParser::and_expression() {
  ExprRef left = not_expression();
  while (at_name("and")) {
    const int line = next().line;
    left = binary(Op::and_, line, std::move(left), not_expression());
  }
  return left;
}

ExprRef ExpressionParser::not_expression() {
  if (!at_name("not")) return comparison();
  Nest nest(*this);
  ExprRef e = node(Op::not_, next().line);
  add(*e, not_expression());
  return e;
}

ExprRef ExpressionParser::comparison() {
  static constexpr std::pair<std::string_view, Compare> kCompares[] = {
      {"==", Compare::eq}, {"!=", Compare::ne}, {"<", Compare::lt},
      {"<=", Compare::le}, {">", Compare::gt},  {">=", Compare::ge}};
  ExprRef left = sum();
  ExprRef e;
  for (;;) {
    const int line = current().line;
    const auto* found = std::find_if(std::begin(kCompares), std::end(kCompares),
                                     [&](const auto& row) { return at_op(row.first); });
    Compare how;
    if (found != std::end(kCompares))
      how = found->second;
    else if (at_name("in"))
      how = Compare::in;
    else if (at_name("not") && look().kind == TokenKind::name && look().text == "in")
      how = Compare::not_in;
    else
      break;
    next();
    if (how == Compare::not_in) next();
    if (!e) {
      e = node(Op::compare, line);
      add(*e, std::move(left));
    }
    e->compares.push_back(how);
    add(*e, sum());
  }
  return e ? std::move(e) : std::move(left);
}

ExprRef ExpressionParser::sum() {
  ExprRef left = concatenation();
  while (at_op("+") || at_op("-")) {
    const Op op = at_op("+") ? Op::add : Op::sub;
    const int line = next().line;
    left = binary(op, line, std::move(left), concatenation());
  }
  return left;
}

ExprRef ExpressionParser::concatenation() {
  ExprRef first = product();
  if (!at_op("~")) return first;
  ExprRef e = node(Op::concat, current().line);
  add(*e, std::move(first));
  while (skip_op("~")) add(*e, product());
  return e;
}

ExprRef ExpressionParser::product() {
  static constexpr std::pair<std::string_view, Op> kOps[] = {
      {"*", Op::mul}, {"/", Op::div}, {"//", Op::floordiv}, {"%", Op::mod}};
  ExprRef left = power();
  for (;;) {
    const auto* found = std::find_if(std::begin(kOps), std::end(kOps),
                                     [&](const auto& row) { return at_op(row.first); });
    if (found == std::end(kOps)) return left;
    const int line = next().line;
    left = binary(found->second, line, std::move(left), power());
  }
}

ExprRef ExpressionParser::power() {
  ExprRef left = unary();
  while (at_op("**")) {
    const int line = next().line;
    left = binary(Op::pow, line, std::move(left), unary());
  }
  return left;
}

ExprRef ExpressionParser::unary(bool with_filters) {
  ExprRef e;
  if (at_op("-") || at_op("+")) {
    Nest nest(*this);
    const Op op = at_op("-") ? Op::neg : Op::pos;
    e = node(op, next().line);
    add(*e, unary(false));
  } else {
    e = primary();
  }
  e = postfix(std::move(e));
  return with_filters ? filters_and_tests(std::move(e)) : std::move(e);
}

ExprRef ExpressionParser::primary() {
  const Token& token = current();
  ExprRef e = node(Op::constant, token.line);
  if (token.kind == TokenKind::name) {
    const std::string& name = next().text;
    if (name == "true" || name == "True")
      e->constant = Value(true);
    else if (name == "false" || name == "False")
      e->constant = Value(false);
    else if (name == "none" || name == "None")
      e->constant = Value();
    else {
      e->op = Op::name;
      e->name = name;
      for (Extras& m : macros_) {
        m.varargs |= name == "varargs";
        m.kwargs |= name == "kwargs";
        m.caller |= name == "caller";
      }
    }
  } else if (token.kind == TokenKind::string) {
    std::string text;
    while (current().kind == TokenKind::string) text += next().text;
    e->constant = make_str(text);
  } else if (token.kind == TokenKind::integer) {
    e->constant = Value(next().integer);
  } else if (token.kind == TokenKind::number) {
    e->constant = Value(next().number);
  } else if (skip_op("(")) {
    e = tuple(true, true);
    expect_op(")");
  } else if (at_op("[")) {
    e = list();
  } else if (at_op("{")) {
    e = dict();
  } else {
    fail_here("unexpected " + describe(token));
  }
  return e;
}

bool ExpressionParser::at_tuple_end(std::string_view end_name) const {
  const TokenKind kind = current().kind;
  return kind == TokenKind::variable_end || kind == TokenKind::block_end || at_op(")") ||
         (!end_name.empty() && at_name(end_name));
}

ExprRef ExpressionParser::tuple(bool with_condition, bool parenthesized,
                                std::string_view end_name) {
  ExprRef e = node(Op::tuple, current().line);
  bool comma = false;
  while (!at_tuple_end(end_name)) {
    add(*e, expression(with_condition));
    if (!skip_op(",")) break;
    comma = true;
  }
  if (comma) return e;
  if (!e->kids.empty()) return std::move(e->kids[0]);
  if (!parenthesized) fail_here("expected an expression, found " + describe(current()));
  return e;
}

ExprRef ExpressionParser::target_item(bool with_namespace) {
  const int line = current().line;
  if (skip_op("(")) {
    Nest nest(*this);
    ExprRef e = target(false);
    expect_op(")");
    return e;
  }
  ExprRef e = node(Op::name, line);
  e->name = expect_name();
  static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                   "True", "False", "None"};
  if (std::find(std::begin(kReserved), std::end(kReserved), e->name) != std::end(kReserved))
    fail_here("can't assign to '" + e->name + "'");
  if (with_namespace && skip_op(".")) {
    ExprRef member = node(Op::attribute, line);
    add(*member, std::move(e));
    member->name = expect_name();
    return member;
  }
  return e;
}

ExprRef ExpressionParser::target(bool with_namespace, std::string_view end_name) {
  ExprRef e = node(Op::tuple, current().line);
  bool comma = false;
  while (!at_tuple_end(end_name)) {
    add(*e, target_item(with_namespace));
    if (!skip_op(",")) break;
    comma = true;
  }
  if (!comma && e->kids.empty())
    fail_here("expected a name to assign to, found " + describe(current()));
  return comma ? std::move(e) : std::move(e->kids[0]);
}

ExprRef ExpressionParser::list() {
  ExprRef e = node(Op::list, next().line);
  while (!at_op("]")) {
    add(*e, expression());
    if (!skip_op(",")) break;
  }
  expect_op("]");
  return e;
}

ExprRef ExpressionParser::dict() {
  ExprRef e = node(Op::dict, next().line);
  while (!at_op("}")) {
    add(*e, expression());
    expect_op(":");
    add(*e, expression());
    if (!skip_op(",")) break;
  }
  expect_op("}");
  return e;
}

ExprRef ExpressionParser::postfix(ExprRef value) {
  for (;;) {
    if (at_op(".") || at_op("[")) {
      value = subscript(std::move(value));
    } else if (at_op("(")) {
      ExprRef e = node(Op::call, current().line);
      add(*e, std::move(value));
      arguments(*e);
      value = std::move(e);
    } else {
      return value;
    }
  }
}

ExprRef ExpressionParser::filters_and_tests(ExprRef value) {
  for (;;) {
    if (at_op("|")) {
      value = filters(std::move(value));
    } else if (at_name("is")) {
      value = test(std::move(value));
    } else if (at_op("(")) {
      value = postfix(std::move(value));
    } else {
      return value;
    }
  }
}

ExprRef ExpressionParser::subscript(ExprRef value) {
  const int line = current().line;
  if (skip_op(".")) {
    if (current().kind == TokenKind::integer) {
      ExprRef e = node(Op::item, line);
      add(*e, std::move(value));
      ExprRef index = node(Op::constant, line);
      index->constant = Value(next().integer);
      add(*e, std::move(index));
      return e;
    }
    ExprRef e = node(Op::attribute, line);
    add(*e, std::move(value));
    e->name = expect_name();
    return e;
  }
  next();
  value = subscript_argument(std::move(value));
  if (at_op(",")) fail_here("several subscripts are not supported");
  expect_op("]");
  return value;
}

ExprRef ExpressionParser::subscript_argument(ExprRef value) {
  const int line = current().line;
  ExprRef first = at_op(":") ? nullptr : expression();
  if (!at_op(":")) return binary(Op::item, line, std::move(value), std::move(first));
  ExprRef e = node(Op::slice, line);
  add(*e, std::move(value));
  add(*e, std::move(first));
  for (int i = 0; i < 2; ++i) {
    const bool given = skip_op(":") && !at_op(":") && !at_op("]") && !at_op(",");
    add(*e, given ? expression() : nullptr);
  }
  return e;
}

void ExpressionParser::arguments(Expr& call) {
  expect_op("(");
  while (!at_op(")")) {
    const bool list = at_op("*");
    if (list || at_op("**")) {
      next();
      ExprRef& more = list ? call.more_positional : call.more_named;
      if (more || call.more_named) fail_here("invalid syntax for function call expression");
      more = expression();
      call.depth = std::max(call.depth, more->depth + 1);
      if (!skip_op(",")) break;
      continue;
    }
    if (current().kind == TokenKind::name && look().kind == TokenKind::op && look().text == "=") {
      if (call.more_named) fail_here("a named argument after '**'");
      std::string name = next().text;
      next();
      ExprRef value = expression();
      call.depth = std::max(call.depth, value->depth + 1);
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty() || call.more_positional || call.more_named)
        fail_here("a positional argument after others");
      add(call, expression());
    }
    if (!skip_op(",")) break;
  }
  expect_op(")");
}

ExprRef ExpressionParser::filters(ExprRef value, bool inline_first) {
  while (inline_first || at_op("|")) {
    if (!inline_first) next();
    inline_first = false;
    ExprRef e = node(Op::filter, current().line);
    e->name = expect_name();
    while (skip_op(".")) e->name += "." + expect_name();
    add(*e, std::move(value));
    if (at_op("(")) arguments(*e);
    value = std::move(e);
  }
  return value;
}

ExprRef ExpressionParser::test(ExprRef value) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ExprRef e = node(Op::test, line);
  e->name = expect_name();
  while (skip_op(".")) e->name += "." + expect_name();
  add(*e, std::move(value));
  const TokenKind kind = current().kind;
  if (at_op("(")) {
    arguments(*e);
  } else if (kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::number ||
             at_op("[") || at_op("{") ||
             (kind == TokenKind::name && !at_name("else") && !at_name("or") && !at_name("and"))) {
    if (at_name("is")) fail_here("tests cannot be chained with 'is'");
    add(*e, postfix(primary()));
  }
  if (!negated) return e;
  ExprRef n = node(Op::not_, line);
  add(*n, std::move(e));
  return n;
}

}  // namespace quire::jinja
