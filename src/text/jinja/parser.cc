#include "text/jinja/parser.h"

#include <algorithm>

#include "text/jinja/callable.h"
#include "text/jinja/expression_parser.h"

namespace quire::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(tokenize(source)) {}

  Block run() {
    Block out = block({});
    if (current().kind != TokenKind::end) fail_here("unknown tag '" + current().text + "'");
    return out;
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  Stmt statement(StmtKind kind, int line) const {
    Stmt s;
    s.kind = kind;
    s.line = line;
    return s;
  }

  bool at_any(Names names) const {
    return std::any_of(names.begin(), names.end(), [&](std::string_view n) { return at_name(n); });
  }

  // Statements up to a tag with one of these names, which becomes the current token.
  Block block(Names ends) {
    Nest nest(*this);
    Block out;
    while (current().kind != TokenKind::end) {
      const Token& token = next();
      if (token.kind == TokenKind::text) {
        Stmt s = statement(StmtKind::text, token.line);
        s.text = make_str(token.text);
        out.push_back(std::move(s));
      } else if (token.kind == TokenKind::variable_begin) {
        Stmt s = statement(StmtKind::output, token.line);
        s.exprs.push_back(tuple());
        expect(TokenKind::variable_end, "'}}'");
        out.push_back(std::move(s));
      } else {
        if (at_any(ends)) return out;
        out.push_back(tag());
        expect(TokenKind::block_end, "'%}'");
      }
    }
    if (ends.size() > 0) fail_here("a block has no '" + std::string(*std::prev(ends.end())) + "'");
    return out;
  }

  void expect(TokenKind kind, const char* what) {
    if (current().kind != kind)
      fail_here(std::string("expected ") + what + ", found " + describe(current()));
    next();
  }

  // The body of the tag being parsed, from the end of its opening tag.
  Block body(Names ends) {
    skip_op(":");
    expect(TokenKind::block_end, "'%}'");
    return block(ends);
  }

  Stmt tag() {
    const int line = current().line;
    if (current().kind != TokenKind::name)
      fail_here("expected the name of a tag, found " + describe(current()));
    const std::string name = next().text;
    if (name == "for") return for_loop(line);
    if (name == "if") return if_(line);
    if (name == "set") return set(line);
    if (name == "macro") return macro(line);
    if (name == "call") return call(line);
    if (name == "filter") return filter(line);
    if (name == "with") return with(line);
    if (name == "generation") return generation(line);
    if (name == "break" || name == "continue") {
      if (loops_ == 0) fail_here("'" + name + "' outside a loop");
      return statement(name == "break" ? StmtKind::break_ : StmtKind::continue_, line);
    }
    static constexpr std::string_view kKnown[] = {"block", "extends", "include",    "import",
                                                  "from",  "print",   "autoescape", "do",
                                                  "trans", "debug"};
    if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown))
      fail_unsupported("the tag '" + name + "' (line " + std::to_string(line) +
                       " of the chat template)");
    fail("unknown tag '" + name + "' (line " + std::to_string(line) + " of the chat template)");
  }

  Stmt for_loop(int line) {
    Stmt s = statement(StmtKind::for_, line);
    s.exprs.push_back(target(false, "in"));
    if (!skip_name("in")) fail_here("expected 'in', found " + describe(current()));
    s.exprs.push_back(tuple(false, false, "recursive"));
    s.exprs.push_back(skip_name("if") ? expression() : nullptr);
    if (at_name("recursive"))
      fail_unsupported("a recursive loop (line " + std::to_string(line) + " of the chat template)");
    ++loops_;
    s.bodies.push_back(body({"else", "endfor"}));
    --loops_;
    if (next().text == "else") {
      s.bodies.push_back(body({"endfor"}));
      next();
    } else {
      s.bodies.emplace_back();
    }
    return s;
  }

  Stmt if_(int line) {
    Stmt s = statement(StmtKind::if_, line);
    for (;;) {
      s.exprs.push_back(tuple(false));
      s.bodies.push_back(body({"elif", "else", "endif"}));
      const std::string end = next().text;
      if (end == "elif") continue;
      if (end == "else") {
        s.bodies.push_back(body({"endif"}));
        next();
      }
      return s;
    }
  }

  Stmt set(int line) {
    Stmt s = statement(StmtKind::set, line);
    s.exprs.push_back(target(true));
    if (skip_op("=")) {
      s.exprs.push_back(tuple());
      return s;
    }
    s.kind = StmtKind::set_block;
    ExprRef chain = filters(node(Op::captured, line));
    s.exprs.push_back(std::move(chain));
    s.bodies.push_back(body({"endset"}));
    next();
    return s;
  }

  void signature(Stmt& s) {
    expect_op("(");
    while (!at_op(")")) {
      Parameter p;
      p.name = expect_name();
      if (skip_op("="))
        p.fallback = expression();
      else if (!s.parameters.empty() && s.parameters.back().fallback)
        fail_here("parameter '" + p.name + "' without a default follows one with");
      s.parameters.push_back(std::move(p));
      if (!at_op(")")) expect_op(",");
    }
    expect_op(")");
  }

  // A body that runs as a function: loops outside cannot be left from inside it.
  void function_body(Stmt& s, Names ends) {
    const int outer_loops = std::exchange(loops_, 0);
    macros_.emplace_back();
    s.bodies.push_back(body(ends));
    next();
    s.uses_varargs = macros_.back().varargs;
    s.uses_kwargs = macros_.back().kwargs;
    s.uses_caller = macros_.back().caller;
    macros_.pop_back();
    loops_ = outer_loops;
  }

  Stmt macro(int line) {
    Stmt s = statement(StmtKind::macro, line);
    s.name = expect_name();
    signature(s);
    function_body(s, {"endmacro"});
    return s;
  }

  Stmt call(int line) {
    Stmt s = statement(StmtKind::call, line);
    s.name = "caller";
    if (at_op("(")) signature(s);
    s.exprs.push_back(expression());
    if (s.exprs[0]->op != Op::call) fail_here("expected a call");
    function_body(s, {"endcall"});
    return s;
  }

  Stmt filter(int line) {
    Stmt s = statement(StmtKind::filter, line);
    s.exprs.push_back(filters(node(Op::captured, line), true));
    s.bodies.push_back(body({"endfilter"}));
    next();
    return s;
  }

  Stmt with(int line) {
    Stmt s = statement(StmtKind::with, line);
    while (current().kind != TokenKind::block_end) {
      if (!s.exprs.empty()) expect_op(",");
      s.exprs.push_back(target(false));
      expect_op("=");
      s.exprs.push_back(expression());
    }
    s.bodies.push_back(body({"endwith"}));
    next();
    return s;
  }

  Stmt generation(int line) {
    Stmt s = statement(StmtKind::generation, line);
    function_body(s, {"endgeneration"});
    return s;
  }

  int loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) { return Parser(source).run(); }

}  // namespace quire::jinja
