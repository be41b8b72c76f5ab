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

// The grammar of an answer to a request with tools, for a model with this chat template: forced
// calls where they are required, otherwise text in which calls are well-formed (a hint: where it
// cannot be made, the request goes on without). Kind::none where neither makes sense. A call is
// written as server/tools.h reads it: between tags where the template knows none or these, else as
// a bare object.
AnswerGrammar tool_call_grammar(const GenerationRequest& asked, std::string_view chat_template);

}  // namespace quire
