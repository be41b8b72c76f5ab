// server/dialect/openai/openai_parse.h - bodies of the OpenAI dialect, read by pure functions.
//
//   GenerationRequest asked;
//   if (auto error = openai::parse_chat(body, context, asked)) return call->refuse(*error);
#pragma once

#include "server/dialect/dialect.h"

namespace quire::openai {

ParseRequest parse_chat, parse_completion;
// The messages, tools and template fields alone.
ParseRequest parse_conversation;
// What chat, completions and responses have in common: model, sampling, stop strings, kv, priority.
// After the messages, whose breakpoints it looks at.
void parse_common(Fields& fields, const ParseContext& context, GenerationRequest& asked);

}  // namespace quire::openai
