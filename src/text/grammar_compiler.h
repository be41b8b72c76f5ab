// text/grammar_compiler.h - grammars made ready for one model's tokens, and answers held to them.
//
// Compiling takes milliseconds to seconds, so it must not run on the engine's thread. Compiled
// grammars are kept; the least recently used leave first. A matcher follows one answer and belongs
// to the engine that runs this answer.
//
//   GrammarCompiler compiler(tokenizer, vocabulary);
//   TRY(CompiledGrammar compiled, compiler.compile(grammar));
//   GrammarMatcher m = compiled.start();
//   m.fill(bits);  // which tokens may come next
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

  // Sets bit t % 32 of word t / 32 where token t may come; no bit at all if none may. Returns
  // false, and leaves `bits` alone, if every token may come.
  bool fill(std::span<std::uint32_t> bits);
  // False if the token may not come here; nothing has changed then.
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
  std::size_t kept = 128;                // compiled grammars, at most
  std::size_t kept_bytes = 32ull << 20;  // and their memory
};

class GrammarCompiler {
 public:
  static bool available();

  // `vocabulary` is the number of the model's logits, which may be larger than that of tokens.
  GrammarCompiler(const Tokenizer& tokenizer, std::uint32_t vocabulary,
                  GrammarCompilerOptions options = {});
  ~GrammarCompiler();

  // From any thread; up to four compile at once. Code::invalid: the message says what is wrong with
  // the grammar.
  Result<CompiledGrammar> compile(const Grammar& grammar);
  // Returns at once: a grammar that is already compiled, or nothing.
  bool find(const Grammar& grammar, CompiledGrammar& out);

  std::size_t kept() const;
  std::size_t kept_bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quire
