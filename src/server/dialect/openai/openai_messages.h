// server/dialect/openai/openai_messages.h - the messages and tools of a chat request, made into what
// templates expect.
#pragma once

#include <functional>
#include <string>

#include "server/fields.h"
#include "server/generation_request.h"

namespace quire::openai {

// Fills messages, tools, tool_choice and the breakpoints of `asked`.
//
// Contents become strings; `developer` becomes `system`; ids of tool calls are left out, because
// they are random and would make every prompt new; arguments become objects, as templates print
// them as JSON.
void parse_messages(Fields& body, GenerationRequest& asked);
void parse_tools(Fields& body, GenerationRequest& asked);
// Messages that another dialect made of its own. Errors call number i name(i).
void read_messages(Fields& body, const Json& messages,
                   const std::function<std::string(std::size_t)>& name, GenerationRequest& asked);

}  // namespace quire::openai
