// server/dialect/openai/openai_messages.h - the messages and tools of a chat request, made into what
// templates expect.
#pragma once

#include "server/fields.h"
#include "server/generation_request.h"

namespace quire::openai {

// Fills messages, tools, tool_choice and the breakpoint of `asked`.
//
// Contents become strings; `developer` becomes `system`; ids of tool calls are left out, because
// they are random and would make every prompt new; arguments become objects, as templates print
// them as JSON.
void parse_messages(Fields& body, GenerationRequest& asked);
void parse_tools(Fields& body, GenerationRequest& asked);

}  // namespace quire::openai
