// server/grammar_masks.h - TokenMasks out of compiled grammars (text/grammar_compiler.h).
//
// Grammars are compiled on their own threads, so that a large grammar delays neither requests
// without one nor other grammars. The number of grammars that wait is bounded.
//
//   auto maker = GrammarMasks::create(runtime.tokenizer(), runtime.config().vocabulary);
//   maker->make(asked.grammar, [](GrammarMaker::Made mask) { ... });
#pragma once

#include <atomic>
#include <memory>

#include "server/grammar.h"
#include "server/work_pool.h"
#include "text/grammar_compiler.h"

namespace quire {

class GrammarMasks final : public GrammarMaker {
 public:
  // Null where the build has no grammars. The tokenizer outlives it.
  static std::unique_ptr<GrammarMasks> create(const Tokenizer& tokenizer, std::uint32_t vocabulary);

  void make(const AnswerGrammar& asked, std::shared_ptr<MaskState> state,
            std::function<void(Made)> then) override;
  bool idle_within(std::chrono::milliseconds limit) override { return pool_.idle_within(limit); }

 private:
  GrammarMasks(const Tokenizer& tokenizer, std::uint32_t vocabulary)
      : compiler_(tokenizer, vocabulary) {}

  GrammarCompiler compiler_;
  std::atomic<std::uint32_t> waiting_{0};
  // Compiling cannot be stopped once it began. Last: its jobs use the others.
  WorkPool pool_{{.threads = 2, .slow_max = 4, .slow_after = std::chrono::milliseconds(250)}};
};

// The grammar of what a client asked for.
Result<Grammar> grammar_of(const AnswerGrammar& asked);

}  // namespace quire
