// text/jinja/expression_parser.h - the half of the parser that reads what stands inside tags;
// parser.cc adds statements.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

namespace quire::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& look() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& next() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
  bool at_op(std::string_view op) const {
    return current().kind == TokenKind::op && current().text == op;
  }
  bool at_name(std::string_view name) const {
    return current().kind == TokenKind::name && current().text == name;
  }
  bool skip_op(std::string_view op) { return at_op(op) && (next(), true); }
  bool skip_name(std::string_view name) { return at_name(name) && (next(), true); }
  void expect_op(std::string_view op);
  std::string expect_name();
  [[noreturn]] void fail_here(const std::string& message) const;

  ExprRef expression(bool with_condition = true);
  ExprRef tuple(bool with_condition = true, bool parenthesized = false,
                std::string_view end_name = {});
  ExprRef target(bool with_namespace, std::string_view end_name = {});
  ExprRef filters(ExprRef value, bool inline_first = false);
  ExprRef node(Op op, int line) const;
  void add(Expr& parent, ExprRef kid) const;  // keeps track of depth

  // Recursion in the parser is bounded by this; a chain of operators is bounded by add().
  struct Nest {
    explicit Nest(ExpressionParser& p);
    ~Nest() { --parser.nesting_; }
    ExpressionParser& parser;
  };

  struct Extras {
    bool varargs = false, kwargs = false, caller = false;
  };
  std::vector<Extras> macros_;  // which of the extra names the macros being parsed mention

 private:
  ExprRef or_expression();
  ExprRef and_expression();
  ExprRef not_expression();
  ExprRef comparison();
  ExprRef sum();
  ExprRef concatenation();
  ExprRef product();
  ExprRef power();
  ExprRef unary(bool with_filters = true);
  ExprRef primary();
  ExprRef target_item(bool with_namespace);
  ExprRef list();
  ExprRef dict();
  ExprRef postfix(ExprRef value);
  ExprRef filters_and_tests(ExprRef value);
  ExprRef subscript(ExprRef value);
  ExprRef subscript_argument(ExprRef value);
  ExprRef test(ExprRef value);
  void arguments(Expr& call);
  bool at_tuple_end(std::string_view end_name) const;
  ExprRef binary(Op op, int line, ExprRef left, ExprRef right) const;

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace quire::jinja
