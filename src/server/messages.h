// server/messages.h - the messages and tools of a chat request, made into what templates expect.
#pragma once

#include "server/asked.h"
#include "server/fields.h"

namespace quire {

// Fills messages, tools, tool_choice and the breakpoint of `asked`.
//
// Contents become strings; `developer` becomes `system`; ids of tool calls are left out, because
// they are random and would make every prompt new; arguments become objects, as templates print
// them as JSON.
void parse_messages(Fields& body, Asked& asked);
void parse_tools(Fields& body, Asked& asked);

}  // namespace quire
