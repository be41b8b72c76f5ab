// server/explain_json.h - an Explanation (engine/explain.h) as /v1/kv and the `kv` object of answers
// show it.
#pragma once

#include "base/json.h"
#include "engine/explain.h"
#include "text/tokenizer.h"

namespace quire {

// `text`: the words around a change are shown, to their owner.
Json explanation_json(const Explanation& e, const Tokenizer& tokenizer, bool text);

}  // namespace quire
