// text/grammar_compiler.h - grammars made ready for one model's tokens, and answers held to them.
//
// Compiling takes milliseconds to seconds: not for the engine's thread. What is compiled is kept,
// least recently used last. A matcher follows one answer; it belongs to whoever runs that answer.
//
//   GrammarCompiler compiler(tokenizer, vocabulary);
//   TRY(CompiledGrammar compiled, compiler.compile(grammar));
//   GrammarMatcher m = compiled.start();
//   m.fill(bits);  // which tokens may come
//   m.accept(token);
//
// The work is xgrammar's. A build without it (scripts/xgrammar) has no grammars: available() says
// so and compile() answers unavailable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"
#include "base/token.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace quire {

class GrammarMatcher {
 public:
  GrammarMatcher(GrammarMatcher&&) noexcept;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
  ~GrammarMatcher();

  // Bit t % 32 of word t / 32: token t may come. No bit at all: nothing may. False: everything may,
  // and `bits` is not set.
  bool fill(std::span<std::uint32_t> bits);
  // False, and nothing has changed: the token may not come here.
  bool accept(TokenId token);
  bool may_end() const;         // an end token may come now
  bool over() const;            // one has come
  GrammarMatcher fork() const;  // another answer, from here on

 private:
  friend class CompiledGrammar;
  struct State;
  explicit GrammarMatcher(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class CompiledGrammar {
 public:
  GrammarMatcher start() const;
  std::size_t bytes() const;  // of memory, about

 private:
  friend class GrammarCompiler;
  struct State;
  std::shared_ptr<const State> state_;
};

struct GrammarCompilerOptions {
  std::size_t kept = 128;                 // compiled grammars, at most
  std::size_t kept_bytes = 32ull << 20;  // and their memory
};

class GrammarCompiler {
 public:
  static bool available();

  // `vocabulary` is the model's: logits there are, perhaps more than tokens.
  GrammarCompiler(const Tokenizer& tokenizer, std::uint32_t vocabulary,
                  GrammarCompilerOptions options = {});
  ~GrammarCompiler();

  // Any thread; up to four compile at once. Code::invalid says what is wrong with it.
  Result<CompiledGrammar> compile(const Grammar& grammar);
  // One that is kept, at once.
  bool find(const Grammar& grammar, CompiledGrammar& out);

  std::size_t kept() const;
  std::size_t kept_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
