// text/control_tokens.h - which tokens a model's turns are made of, whatever its file calls them.
//
// Some GGUF files type <|im_start|> or <end_of_turn> as user-defined or even normal tokens. The
// tokenizer would then read them in a user's text, and a message could end its own turn and write
// another one.
//
//   type_turn_markers_as_control(spec, chat_template);   // before Tokenizer::create(spec)
#pragma once

#include <string_view>

#include "text/vocab.h"

namespace quire {

// Makes a control token of every token in brackets (<...>, [...]) that the template writes or that
// ends an answer. Tags within a turn, such as <think> and <tool_call>, stay what they are: a reader
// sees them, and no turn begins or ends with them.
void type_turn_markers_as_control(VocabSpec& spec, std::string_view chat_template);

}  // namespace quire
