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

}  // namespace quire::openai
