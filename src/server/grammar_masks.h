// server/grammar_masks.h - TokenMasks out of compiled grammars (text/grammar_compiler.h).
//
// Grammars are compiled on a thread of their own, one after the other, so that a large one holds up
// no request that needs none; how many wait is bounded, and while one takes very long no others are
// taken.
//
//   auto maker = GrammarMasks::create(runtime.tokenizer(), runtime.config().vocabulary);
//   maker->make(asked.grammar, [](GrammarMaker::Made mask) { ... });
#pragma once

#include <atomic>
#include <memory>

#include "server/grammar.h"
#include "server/worker.h"
#include "text/grammar_compiler.h"

namespace quire {

class GrammarMasks final : public GrammarMaker {
 public:
  // Null where the build has no grammars. The tokenizer outlives it.
  static std::unique_ptr<GrammarMasks> create(const Tokenizer& tokenizer, std::uint32_t vocabulary);
  ~GrammarMasks() override;

  void make(const AnswerGrammar& asked, std::function<void(Made)> then) override;

 private:
  GrammarMasks(const Tokenizer& tokenizer, std::uint32_t vocabulary)
      : compiler_(tokenizer, vocabulary) {}

  GrammarCompiler compiler_;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint32_t> waiting_{0};
  std::atomic<Nanoseconds> busy_since_{0};  // 0: nothing is being compiled
  Worker worker_;                           // last: its jobs use the others
};

// The grammar of what a client asked for.
Result<Grammar> grammar_of(const AnswerGrammar& asked);

}  // namespace quire
