// server/dialect/anthropic/anthropic_blocks.h - tools, system and messages of a request, made into what
// templates expect, with the places of its cache breakpoints.
#pragma once

#include "server/fields.h"
#include "server/generation_request.h"

namespace quire::anthropic {

// Fills tools, messages, parts and breakpoints of `asked`.
//
// A message's text blocks become one content, joined by line feeds as OpenAI's parts are. Calls go with
// the assistant's message, each result becomes a message of its own. Ids become numbers: they are random
// and would make every prompt new. Reasoning of earlier turns is dropped. If the last message is the
// assistant's, the answer continues it.
void parse_blocks(Fields& body, GenerationRequest& asked);
void parse_tool_choice(Fields& body, GenerationRequest& asked);

}  // namespace quire::anthropic
