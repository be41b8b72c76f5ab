// server/grammar.h - where answers of a given shape come from: makes a TokenMask of a grammar.
//
// The server holds one maker or none; without one, requests that need it are refused (501) and
// everything else works.
#pragma once

#include <memory>

#include "base/result.h"
#include "engine/request.h"
#include "server/asked.h"

namespace quire {

class GrammarMaker {
 public:
  virtual ~GrammarMaker() = default;
  // Worker thread. Code::invalid: the schema, regex or grammar is wrong, or asks for too much.
  virtual Result<std::unique_ptr<TokenMask>> make(const AskedGrammar& grammar) = 0;
};

// The JSON schema (as text of a call between tags, see server/tools.h) that forces tool calls.
// Kind::tool_calls of `grammar` carries {"tools": [{"name", "parameters"}...], "parallel": bool}.
AskedGrammar tool_call_grammar(const Asked& asked);

}  // namespace quire
