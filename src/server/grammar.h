// server/grammar.h - makes a TokenMask of a grammar, for answers that must have a given shape.
//
// The server holds one maker or none (server/grammar_masks.h is the real one); without one,
// requests that need it are refused (501) and everything else works.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "engine/request.h"
#include "server/answer_format/answer_format.h"
#include "server/answer_format/opened_mask.h"
#include "server/answer_format/reasoning.h"
#include "server/generation_request.h"

namespace quire {

// What happened to a mask. The Generation reads it when the answer ends.
struct MaskState {
  std::atomic<bool> too_slow{false};  // it took more than its share of a step, and ended the answer
};

class GrammarMaker {
 public:
  using Made = Result<std::unique_ptr<TokenMask>>;

  virtual ~GrammarMaker() = default;  // requests that wait get Code::unavailable
  // Worker thread. `then` runs at once where the grammar is known, and otherwise on a thread that
  // may take its time. Code::invalid: the schema, regex or grammar is wrong, or asks for too much.
  virtual void make(const AnswerGrammar& grammar, std::shared_ptr<MaskState> state,
                    std::function<void(Made)> then) = 0;
  // Whether no grammar is being made; waits at most so long for it.
  virtual bool idle_within(std::chrono::milliseconds limit) = 0;
};

// The grammar of an answer to a request with tools, by the format of its model: forced calls where
// they are required, otherwise text in which calls are well-formed (a hint: where it cannot be made,
// the request goes on without). Kind::none where neither makes sense. Where the format's marks are
// control tokens, which grammars cannot write, a call is a bare object.
AnswerGrammar tool_call_grammar(const GenerationRequest& asked, const AnswerFormat& format,
                                const Tokenizer& tokenizer);
// How the answer is read: what of the model's format may be in it.
AnswerFormat format_of_answer(const GenerationRequest& asked, AnswerFormat format,
                              const Tokenizer& tokenizer);
// What comes before the grammar's text.
MaskOpening mask_opening(const AnswerGrammar& grammar, const AnswerFormat& format,
                         std::string_view prompt_end, const Tokenizer& tokenizer);

}  // namespace quire
